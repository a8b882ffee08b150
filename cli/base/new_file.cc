// SPDX-License-Identifier: Apache-2.0
#include "cli/base/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::Status IsThere(const std::string& path) {
  return InvalidField({.field = "FILE",
                       .value = path,
                       .rule = "must not be there yet: nothing is overwritten",
                       .fix = "give another name, or remove it first"});
}

bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status CheckNewFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) return IsThere(path);
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  return InvalidField({.field = "FILE",
                       .value = path,
                       .rule = absl::StrCat("its directory ", directory.string(), " must be there"),
                       .fix = "make the directory, or write to another one"});
}

absl::Status WriteNewFile(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) return IsThere(path);
  if (file >= 0) {
    const bool written = WriteAll(file, text);
    const int error = errno;
    if (close(file) == 0 && written) return absl::OkStatus();
    unlink(path.c_str());
    if (!written) errno = error;
  }
  return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace takt::cli
