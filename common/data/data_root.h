// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace takt::data {

// The real path of `path`, which a job gave in `field` ("data.train.path"): relative paths start at
// `root`, absolute ones must lie under it; neither "..", nor a symbolic link leads out. An empty
// root is the working directory. Errors: kInvalidArgument (FieldError): outside the root, or
// nothing there.
absl::StatusOr<std::string> ResolveUnderRoot(std::string_view field, std::string_view root,
                                             std::string_view path);

}  // namespace takt::data
