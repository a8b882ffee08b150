// SPDX-License-Identifier: Apache-2.0
#include "common/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/open_real.h"
#include "common/base/status.h"

namespace takt {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // It opens without blocking: opening a FIFO that nobody writes would otherwise never return.
  return Map(FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), path);
}

absl::StatusOr<MappedFile> MappedFile::OpenReal(const std::string& path) {
  return Map(FileDescriptor(takt::OpenReal(path, O_RDONLY | O_NONBLOCK)), path);
}

absl::StatusOr<MappedFile> MappedFile::Map(const FileDescriptor& file, const std::string& path) {
  if (file.get() < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return FileError(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  MappedFile mapped;
  if (info.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return FileError(errno, absl::StrCat("cannot map ", path));
  mapped.bytes_ = {static_cast<const std::byte*>(memory), size};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace takt
