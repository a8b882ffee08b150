// SPDX-License-Identifier: Apache-2.0
#include "common/base/open_real.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace takt {

int OpenReal(const std::string& path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<unsigned>(flags) | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;  // else it must be none
  how.resolve = RESOLVE_NO_SYMLINKS;
  const long fd = syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how));
  const bool unknown = fd < 0 && (errno == ENOSYS || errno == EPERM);
  if (unknown) return open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
  return static_cast<int>(fd);
}

}  // namespace takt
