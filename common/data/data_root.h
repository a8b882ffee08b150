// SPDX-License-Identifier: Apache-2.0
// Paths that jobs give: relative ones start at a root, absolute ones must lie under it; neither
// "..", nor a symbolic link leads out. An empty root is the working directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::data {

// The absolute path of `path`, which a job gave in `field` ("data.train.path"). Links are not
// followed and nothing need be there. Errors: kInvalidArgument (FieldError): outside the root.
absl::StatusOr<std::string> JoinUnderRoot(std::string_view field, std::string_view root,
                                          std::string_view path);

// The real path. Errors: kInvalidArgument (FieldError): outside the root, or nothing there.
absl::StatusOr<std::string> ResolveUnderRoot(std::string_view field, std::string_view root,
                                             std::string_view path);

// Absolute paths of what a pattern of the shell (* ? [...]) matches, sorted by their bytes; perhaps
// none. Links are not followed: resolve each before it is opened. Errors: kInvalidArgument
// (FieldError): outside the root.
absl::StatusOr<std::vector<std::string>> MatchUnderRoot(std::string_view field,
                                                        std::string_view root,
                                                        std::string_view pattern);

}  // namespace takt::data
