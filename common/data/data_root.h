// SPDX-License-Identifier: Apache-2.0
// Resolves the paths of jobs. Relative paths start at a root, and absolute ones must lie under it.
// Neither ".." nor a symbolic link may lead out of it. An empty root is the working directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::data {

// Returns the absolute path of `path`, which a job states in `field` ("data.train.path"). Links are
// not followed, and the path need not exist. Errors, all with a FieldError: kInvalidArgument (it is
// outside the root), kFailedPrecondition (the root cannot be used).
absl::StatusOr<std::string> JoinUnderRoot(std::string_view field, std::string_view root,
                                          std::string_view path);

// A path that does not exist breaks this rule.
inline constexpr char kMustExist[] = "must exist";

// Returns the real path. Errors, all with a FieldError: kInvalidArgument (it is outside the root),
// kFailedPrecondition (it does not exist here, with the rule kMustExist, or the disk fails).
absl::StatusOr<std::string> ResolveUnderRoot(std::string_view field, std::string_view root,
                                             std::string_view path);

// Returns the absolute paths that a pattern of the shell (* ? [...]) matches, perhaps none, sorted
// by their bytes. Links are not followed: resolve each path before you open it. Errors: as
// JoinUnderRoot.
absl::StatusOr<std::vector<std::string>> MatchUnderRoot(std::string_view field,
                                                        std::string_view root,
                                                        std::string_view pattern);

}  // namespace takt::data
