// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/sequential_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::checkpoint {

absl::StatusOr<SequentialFile> SequentialFile::Open(const std::string& path) {
  SequentialFile file;
  file.path_ = path;
  // Opens without blocking, because opening a FIFO without a writer would never return.
  file.fd_ = FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd_.valid()) return FileError(errno, absl::StrCat("cannot open ", path));
  struct stat info {};
  if (fstat(file.fd_.get(), &info) != 0)
    return FileError(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  file.size_ = info.st_size;
  return file;
}

absl::Status SequentialFile::Read(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = read(fd_.get(), out.data(), out.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, absl::StrCat("cannot read ", path_));
    if (count == 0) return absl::DataLossError(absl::StrCat(path_, " ends too early"));
    out = out.subspan(static_cast<std::size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace takt::checkpoint
