// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace takt::transport {

namespace {

absl::Status SystemError(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Maps the memory. The mapping closes `fd_to_keep` (if any) when it goes.
absl::StatusOr<std::shared_ptr<std::byte>> Map(int fd, std::size_t size_bytes, int fd_to_keep) {
  void* address = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return SystemError("mmap");
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(address),
                                    [size_bytes, fd_to_keep](std::byte* bytes) {
                                      munmap(bytes, size_bytes);
                                      if (fd_to_keep >= 0) close(fd_to_keep);
                                    });
}

// Finds out what the file is without opening it: the path may lead to a terminal or a pipe.
absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  const int place = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (place < 0) {
    // A peer that ended has no files any more.
    const bool is_gone = errno == ENOENT;
    const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
    return is_gone ? absl::UnavailableError(text) : absl::FailedPreconditionError(text);
  }
  struct stat info;
  int fd = -1;
  if (fstat(place, &info) == 0 && S_ISREG(info.st_mode)) {
    fd = open(absl::StrCat("/proc/self/fd/", place).c_str(), O_RDWR | O_CLOEXEC);
  }
  close(place);
  if (fd < 0) return absl::FailedPreconditionError(absl::StrCat(path, " is not shared memory"));
  return fd;
}

}  // namespace

absl::StatusOr<SharedMemory> CreateSharedMemory(const std::string& label, std::size_t size_bytes) {
  const int fd = memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  // The size is sealed, because a peer that shrinks the memory would kill this process with SIGBUS.
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const absl::Status status = SystemError("sizing shared memory");
    close(fd);
    return status;
  }
  absl::StatusOr<std::shared_ptr<std::byte>> bytes = Map(fd, size_bytes, fd);
  if (!bytes.ok()) {
    close(fd);
    return bytes.status();
  }
  return SharedMemory{*std::move(bytes), size_bytes,
                      absl::StrCat(getpid(), " ", fd, " ", size_bytes)};
}

absl::StatusOr<SharedMemory> AttachSharedMemory(const std::string& handle) {
  const std::vector<std::string> fields = absl::StrSplit(handle, ' ');
  int pid = 0, remote_fd = 0;
  std::uint64_t size_bytes = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &pid) || pid <= 0 ||
      !absl::SimpleAtoi(fields[1], &remote_fd) || remote_fd < 0 ||
      !absl::SimpleAtoi(fields[2], &size_bytes) || size_bytes == 0) {
    return absl::InvalidArgumentError("not a handle of shared memory");
  }
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(absl::StrCat("/proc/", pid, "/fd/", remote_fd)));
  struct stat info;
  const bool right_size =
      fstat(fd, &info) == 0 && static_cast<std::uint64_t>(info.st_size) == size_bytes;
  // An ordinary file has no seals, so fcntl fails and the file is refused.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (!right_size || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return absl::FailedPreconditionError("what lies behind the handle is not the announced memory");
  }
  absl::StatusOr<std::shared_ptr<std::byte>> bytes = Map(fd, size_bytes, -1);
  close(fd);
  if (!bytes.ok()) return bytes.status();
  return SharedMemory{*std::move(bytes), size_bytes, ""};
}

}  // namespace takt::transport
