// SPDX-License-Identifier: Apache-2.0
#include "cli/job_input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/config/spec_files.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestJobFile = std::size_t{1} << 20;
constexpr std::size_t kLargestCompanionFile = std::size_t{16}
                                              << 20;  // a schedule's CSV, a config.json

}  // namespace

absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& field,
                                          std::size_t limit) {
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField(
        {.field = field, .value = path, .rule = std::move(rule), .fix = std::move(fix)});
  };
  std::error_code error;
  if (path != "-" && fs::is_directory(path, error)) {
    return refuse("must be a file, and is a directory", "name the file in it");
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      path == "-" ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* file) { return file != nullptr ? std::fclose(file) : 0; });
  std::FILE* const file = path == "-" ? stdin : opened.get();
  if (file == nullptr) {
    return refuse(absl::StrCat("must be a file that can be read: ", std::strerror(errno)),
                  "check the path; relative ones start at the current directory");
  }
  std::string text(limit + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  if (std::ferror(file)) return refuse("cannot be read", "check the disk");
  if (text.size() > limit) {
    return refuse(absl::StrCat("is larger than ", limit, " bytes, the most for such a file"),
                  "check that this is the file you meant");
  }
  return text;
}

absl::StatusOr<v1::JobSpec> PrepareJob(const JobInput& input) {
  ASSIGN_OR_RETURN(const std::string text, ReadInputFile(input.path, "JOB.yaml", kLargestJobFile));
  ASSIGN_OR_RETURN(v1::JobSpec spec,
                   config::ParseJobFile(text, {.name = input.path, .overrides = input.set}));
  const fs::path directory = fs::absolute(input.path == "-" ? "." : input.path).parent_path();
  if (input.make_paths_absolute) config::MakePathsAbsolute(spec, directory.string());
  RETURN_IF_ERROR(config::FillFromFiles(spec, [&](const std::string& path) {
    return ReadInputFile((directory / path).string(), path, kLargestCompanionFile);
  }));
  RETURN_IF_ERROR(config::ToJobSpec(spec).status());
  return spec;
}

}  // namespace takt::cli
