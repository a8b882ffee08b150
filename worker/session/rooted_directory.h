// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace takt::session {

// Makes the directory `path`, which a job gave in `field`, and its parents, below `root`, which is
// made too. Returns its real absolute path. Nothing is made through a symbolic link that leads out
// of the root. Errors: kInvalidArgument (FieldError) if it is outside the root; those of the file
// system.
absl::StatusOr<std::string> MakeDirectoryUnderRoot(worker_checkpoint::FileSystem& files,
                                                   std::string_view field, const std::string& root,
                                                   std::string_view path);

// Returns the error of a job whose directory this worker cannot write: kFailedPrecondition
// (FieldError). why: from the disk.
absl::Status UnwritableDirectory(std::string_view field, std::string_view path,
                                 const absl::Status& why, std::string_view fix);

}  // namespace takt::session
