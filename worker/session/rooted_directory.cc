// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rooted_directory.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/data_root.h"
#include "worker/checkpoint/commit.h"

namespace takt::session {

absl::StatusOr<std::string> MakeDirectoryUnderRoot(worker_checkpoint::FileSystem& files,
                                                   std::string_view field, const std::string& root,
                                                   std::string_view path) {
  RETURN_IF_ERROR(worker_checkpoint::EnsureDirectory(files, root));
  ASSIGN_OR_RETURN(const std::string joined, data::JoinUnderRoot(field, root, path));
  std::filesystem::path there = joined;
  for (std::error_code error; !exists(there, error) && there.has_relative_path();)
    there = there.parent_path();
  RETURN_IF_ERROR(data::ResolveUnderRoot(field, root, there.string()).status());
  RETURN_IF_ERROR(worker_checkpoint::EnsureDirectory(files, joined));
  return data::ResolveUnderRoot(field, root, joined);
}

absl::Status UnwritableDirectory(std::string_view field, std::string_view path,
                                 const absl::Status& why, std::string_view fix) {
  return UnusableField({.field = std::string(field),
                        .value = std::string(path),
                        .rule = absl::StrCat("must be a directory that the worker of rank 0 can "
                                             "write: ",
                                             why.message()),
                        .fix = std::string(fix)});
}

}  // namespace takt::session
