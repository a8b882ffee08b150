// SPDX-License-Identifier: Apache-2.0
// Writes files that a command makes and never overwrites.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace takt::cli {

// kInvalidArgument (FieldError "FILE"): the file exists already, or its directory does not.
absl::Status CheckNewFile(const std::string& path);

// Writes the file. Errors: those of CheckNewFile; kInternal: the file system's reason. Nothing is
// left of the file then.
absl::Status WriteNewFile(const std::string& path, std::string_view text);

}  // namespace takt::cli
