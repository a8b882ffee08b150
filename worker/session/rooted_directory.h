// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace takt::session {

// Makes the directory `path`, which a job gave in `field`, and those that it lies in, below `root`
// (which is made too); its absolute path. Nothing is made beyond a symbolic link that leads out of
// the root; the path is real.  Errors: kInvalidArgument (FieldError): outside the root; what the
// file system says.
absl::StatusOr<std::string> MakeDirectoryUnderRoot(checkpoint::FileSystem& files,
                                                   std::string_view field, const std::string& root,
                                                   std::string_view path);

}  // namespace takt::session
