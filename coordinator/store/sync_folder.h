// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace takt::store {

// Makes the names in the folder of `path` durable: a file that was made, moved or removed there
// stays so after a power cut. Errors: kUnavailable.  Blocks: for the disk.
absl::Status SyncFolderOf(const std::string& path);

}  // namespace takt::store
