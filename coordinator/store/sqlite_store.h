// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file (WAL, synchronous=FULL). Its layout is in README.md beside this
// file.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace takt::store {

inline constexpr int kSchemaVersion = 1;

// Opens or creates `path`.
// Errors, all naming the file: kDataLoss (damaged), kFailedPrecondition (written by a newer
// program), kUnavailable (cannot be opened, created or written).
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path,
                                                       StoreLimits limits = {});

}  // namespace takt::store
