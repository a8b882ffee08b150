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

// The error is a clause about the file: "No such file or directory".
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t limit) {
  std::error_code error;
  if (path != "-" && fs::is_directory(path, error)) {
    return absl::InvalidArgumentError("it is a directory");
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      path == "-" ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* file) { return file != nullptr ? std::fclose(file) : 0; });
  std::FILE* const file = path == "-" ? stdin : opened.get();
  if (file == nullptr) return absl::InvalidArgumentError(std::strerror(errno));
  std::string text(limit + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  if (std::ferror(file) != 0) return absl::InvalidArgumentError(std::strerror(errno));
  if (text.size() > limit) {
    return absl::OutOfRangeError(absl::StrCat("it is larger than ", limit, " bytes"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& field,
                                          std::size_t limit) {
  absl::StatusOr<std::string> text = ReadFile(path, limit);
  if (text.ok()) return text;
  if (absl::IsOutOfRange(text.status())) {
    return InvalidField({.field = field,
                         .value = path,
                         .rule = absl::StrCat("must hold at most ", limit, " bytes"),
                         .fix = "check that it is the file you mean"});
  }
  return InvalidField({.field = field,
                       .value = path,
                       .rule = absl::StrCat("must name a readable file: ", text.status().message()),
                       .fix = "check the path"});
}

absl::StatusOr<PreparedJob> PrepareJob(const JobInput& input) {
  ASSIGN_OR_RETURN(const std::string text, ReadInputFile(input.path, "JOB.yaml", kLargestJobFile));
  const config::JobFileOptions options{.name = input.path == "-" ? "stdin" : input.path,
                                       .overrides = input.set};
  PreparedJob job{.locate = [text, options](const absl::Status& status) {
    return config::LocateErrors(status, text, options);
  }};
  ASSIGN_OR_RETURN(job.spec, config::ParseJobFile(text, options));
  const fs::path directory = fs::absolute(input.path == "-" ? "." : input.path).parent_path();
  if (input.make_paths_absolute) config::MakePathsAbsolute(job.spec, directory.string());
  absl::Status status = config::FillFromFiles(job.spec, [&](const std::string& path) {
    return ReadFile((directory / path).string(), kLargestCompanionFile);
  });
  if (status.ok()) status = config::ToJobSpec(job.spec).status();
  if (!status.ok()) return job.locate(status);
  return job;
}

}  // namespace takt::cli
