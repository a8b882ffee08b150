// SPDX-License-Identifier: Apache-2.0
// The store in one SQLite file (WAL, synchronous=FULL). Its layout is in README.md beside this
// file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace takt::store {

// A state that was copied back, or whose commit counter is missing, goes on so many epochs later.
// No coordinator that ran since the copy was made has an epoch as high.
inline constexpr std::int64_t kEpochsSkipped = 1'000'000;

// Opens or creates `path`, and beside it PATH.commits (commit_counter.h) and PATH.reserve
// (reserve_file.h). It reads every page and checks every row; a file of the version before is
// upgraded.
// Errors, all naming the file: kDataLoss (damaged, or transactions are missing),
// kFailedPrecondition (written by a newer program), kUnavailable (cannot be opened, created or
// written).
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path,
                                                       StoreLimits limits = {});

}  // namespace takt::store
