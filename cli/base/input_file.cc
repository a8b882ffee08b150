// SPDX-License-Identifier: Apache-2.0
#include "cli/base/input_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {

absl::StatusOr<std::string> ReadFileUpTo(const std::string& path, std::size_t limit) {
  std::error_code error;
  if (path != "-" && std::filesystem::is_directory(path, error)) {
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

absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& field,
                                          std::size_t limit) {
  absl::StatusOr<std::string> text = ReadFileUpTo(path, limit);
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

}  // namespace takt::cli
