// SPDX-License-Identifier: Apache-2.0
#include "common/data/corpus_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/data_root.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;

// The most files of a corpus. Each is mapped into memory, and by default a process may have 65530
// mappings.
constexpr std::size_t kMaxFiles = 10000;

FieldError Error(const CorpusPath& path, std::string rule, std::string fix) {
  return {.field = path.field, .value = path.path, .rule = std::move(rule), .fix = std::move(fix)};
}

absl::Status Refuse(const CorpusPath& path, std::string rule, std::string fix) {
  return InvalidField(Error(path, std::move(rule), std::move(fix)));
}

// The extension of a format's files; "": any.
std::string ExtensionOf(config::DataFormat format) {
  if (format == config::DataFormat::kBytes) return "";
  return format == config::DataFormat::kSafetensors ? ".safetensors" : ".bin";
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const CorpusPath& path,
                                                       const std::string& directory) {
  const std::string extension = ExtensionOf(path.format);
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path& entry = it->path();
    std::error_code ignored;  // a dangling link is not a regular file
    if (entry.filename().string().front() == '.' || !it->is_regular_file(ignored)) continue;
    if (extension.empty() || entry.extension() == extension) names.push_back(entry.string());
  }
  if (error) {
    return UnusableField(
        Error(path, absl::StrCat("must be a directory that can be read: ", error.message()),
              "give read permission to the worker's user"));
  }
  if (names.empty()) {
    return UnusableField(Error(
        path,
        absl::StrCat("is a directory without ", extension, extension.empty() ? "" : " ", "files"),
        "name another directory, a file or a pattern such as DIR/*"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<std::string>> MatchPattern(const CorpusPath& path) {
  ASSIGN_OR_RETURN(std::vector<std::string> names,
                   MatchUnderRoot(path.field, path.data_root, path.path));
  if (!names.empty()) return names;
  return UnusableField(Error(path, "is a pattern that matches no file", "correct the pattern"));
}

// Returns PREFIX of PREFIX.bin and PREFIX.idx.
std::string PrefixOf(const std::string& name) {
  const bool has_extension = name.ends_with(".bin") || name.ends_with(".idx");
  return has_extension ? name.substr(0, name.size() - 4) : name;
}

// The absolute path. Links are not followed.
absl::StatusOr<std::vector<std::string>> FindNames(const CorpusPath& path) {
  ASSIGN_OR_RETURN(std::string name, JoinUnderRoot(path.field, path.data_root, path.path));
  std::error_code error;
  if (fs::is_directory(name, error)) {
    // If a link leads out of the root, errors do not even show the names behind it.
    RETURN_IF_ERROR(ResolveUnderRoot(path.field, path.data_root, path.path).status());
    return ListDirectory(path, name);
  }
  const bool is_pattern = path.path.find_first_of("*?[") != std::string::npos;
  if (is_pattern && !fs::exists(name, error)) return MatchPattern(path);
  return std::vector<std::string>{std::move(name)};
}

// Errors show the path as the job states it, not what a pattern found behind a link.
absl::StatusOr<std::string> Resolve(const CorpusPath& path, const std::string& name) {
  absl::StatusOr<std::string> real = ResolveUnderRoot(path.field, path.data_root, name);
  if (real.ok()) return real;
  const FieldError error = FieldErrorsOf(real.status()).front();
  if (absl::IsInvalidArgument(real.status())) return Refuse(path, error.rule, error.fix);
  return UnusableField(Error(path, error.rule, error.fix));
}

}  // namespace

absl::StatusOr<std::vector<CorpusFile>> FindCorpusFiles(const CorpusPath& path) {
  const bool is_megatron = path.format == config::DataFormat::kMegatron;
  ASSIGN_OR_RETURN(std::vector<std::string> names, FindNames(path));
  if (is_megatron) {
    for (std::string& name : names) name = PrefixOf(name);
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  if (names.size() > kMaxFiles) {
    return Refuse(
        path, absl::StrCat("names ", names.size(), " files; at most ", kMaxFiles, " are mapped"),
        "join them into larger files");
  }
  std::vector<CorpusFile> files;
  for (const std::string& name : names) {
    CorpusFile& file = files.emplace_back();
    ASSIGN_OR_RETURN(file.file, Resolve(path, is_megatron ? name + ".bin" : name));
    if (!is_megatron) continue;
    ASSIGN_OR_RETURN(file.index, Resolve(path, name + ".idx"));
  }
  return files;
}

}  // namespace takt::data
