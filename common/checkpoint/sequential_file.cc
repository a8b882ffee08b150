// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/sequential_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::checkpoint {

absl::StatusOr<SequentialFile> SequentialFile::Open(const std::string& path) {
  SequentialFile file;
  file.path_ = path;
  // Opens without blocking, because opening a FIFO without a writer would never return.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat info {};
  if (fstat(file.fd_, &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  file.size_ = info.st_size;
  return file;
}

SequentialFile::SequentialFile(SequentialFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

SequentialFile& SequentialFile::operator=(SequentialFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

SequentialFile::~SequentialFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SequentialFile::Read(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = read(fd_, out.data(), out.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    if (count == 0) return absl::DataLossError(absl::StrCat(path_, " ends too early"));
    out = out.subspan(static_cast<std::size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace takt::checkpoint
