// SPDX-License-Identifier: Apache-2.0
#include "common/base/open_real.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace takt {
namespace {

// Opens one directory after the other. None of the names may be a link.
int WalkReal(const std::string& path, int flags, mode_t mode) {
  constexpr int kDirectory = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const std::size_t slash = path.find_last_of('/');
  const std::string directories = slash != std::string::npos ? path.substr(0, slash) : "";
  const std::string last = slash != std::string::npos ? path.substr(slash + 1) : path;
  int at = open(path.starts_with('/') ? "/" : ".", kDirectory);
  const auto step = [&at](const std::string& name, int how, mode_t its_mode) {
    const int next = openat(at, name.c_str(), how, its_mode);
    const int error = errno;
    close(at);
    errno = error;
    at = next;
  };
  for (std::size_t begin = 0; at >= 0 && begin < directories.size();) {
    const std::size_t end = std::min(directories.find('/', begin), directories.size());
    if (end > begin) step(directories.substr(begin, end - begin), kDirectory, 0);
    begin = end + 1;
  }
  if (at >= 0) step(last.empty() ? "." : last, flags | O_NOFOLLOW | O_CLOEXEC, mode);
  return at;
}

}  // namespace

int OpenReal(const std::string& path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<unsigned>(flags) | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;  // openat2 wants 0 where it creates nothing
  how.resolve = RESOLVE_NO_SYMLINKS;
  const long fd = syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how));
  // Kernels before 5.6 do not know the call, and filters of containers that do not know it refuse
  // it.
  const bool unknown = fd < 0 && (errno == ENOSYS || errno == EPERM);
  return unknown ? WalkReal(path, flags, mode) : static_cast<int>(fd);
}

}  // namespace takt
