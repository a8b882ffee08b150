// SPDX-License-Identifier: Apache-2.0
// Reads files that the user names as input; "-" is stdin.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace takt::cli {

// Returns the text of a file of at most `limit` bytes. The message of the error is a clause about
// the file: "No such file or directory". kOutOfRange: it is larger; kInvalidArgument: it cannot be
// read.
absl::StatusOr<std::string> ReadFileUpTo(const std::string& path, std::size_t limit);

// Returns the same. kInvalidArgument (FieldError on `field`): it cannot be read or is larger.
absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& field,
                                          std::size_t limit);

}  // namespace takt::cli
