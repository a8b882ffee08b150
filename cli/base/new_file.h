// SPDX-License-Identifier: Apache-2.0
// Files that a command makes and never overwrites.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace takt::cli {

// kInvalidArgument (FieldError "FILE"): it is there already, or its directory is not.
absl::Status CheckNewFile(const std::string& path);

// The same; and kInternal: the file system's reason, nothing is left of it then.
absl::Status WriteNewFile(const std::string& path, std::string_view text);

}  // namespace takt::cli
