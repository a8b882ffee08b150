// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sync_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"

namespace takt::store {

absl::Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const FileDescriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid() && ::fsync(folder.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot sync the folder of ", path, ": ",
                                             std::strerror(errno), "; check that it is writable"));
}

}  // namespace takt::store
