// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/reserve_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file_descriptor.h"

namespace takt::store {

void ReserveFile::Take() {
  if (taken_ || bytes_ == 0) return;
  const FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return;
  struct stat info = {};
  taken_ = (::fstat(file.get(), &info) == 0 && info.st_blocks * 512 >= bytes_) ||
           ::posix_fallocate(file.get(), 0, bytes_) == 0;
  if (!taken_) ::unlink(path_.c_str());
}

bool ReserveFile::Release() {
  taken_ = false;
  return ::unlink(path_.c_str()) == 0;
}

}  // namespace takt::store
