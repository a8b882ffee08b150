// SPDX-License-Identifier: Apache-2.0
// The tables of a state file: how they are made, upgraded and checked. README.md has them as a
// list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/sqlite_db.h"

namespace takt::store {

inline constexpr int kSchemaVersion = 2;

// Says what is wrong in a state file.
struct Damage {
  std::string table;  // empty: the file
  std::string key;    // of the row; empty: the whole table
  std::string what;   // for people

  std::string ToString() const;
};

// Returns what SQLite and the checksums find, at most `most`. It reads every page.
// Errors: only those that end the check before it found anything.
absl::StatusOr<std::vector<Damage>> FindDamage(SqliteDb& db, int most);

// PrepareSchema says this fix where a file is no coordinator's.
inline constexpr char kNoStateFix[] = "use another --state";

enum class Origin { kCreated, kUpgraded, kCurrent };

// Makes the tables in an empty file, and upgrades those of the version before in one transaction.
// A state that has no cluster id yet gets one.
// Errors: kFailedPrecondition (written by a newer program), kDataLoss (no coordinator's file).
absl::StatusOr<Origin> PrepareSchema(SqliteDb& db);
// True if the file has no tables at all.
absl::StatusOr<bool> IsEmpty(SqliteDb& db);

// From now on `db.row_total()` follows every row that is added, changed or removed.
absl::Status WatchRows(SqliteDb& db);

// Values of the table `meta`. Errors: kDataLoss (it is missing).
absl::StatusOr<std::int64_t> ReadMeta(SqliteDb& db, const std::string& key);
absl::StatusOr<std::string> ReadClusterId(SqliteDb& db);
absl::Status WriteClusterId(SqliteDb& db, const std::string& id);
absl::Status WriteMeta(SqliteDb& db, const std::string& key, std::int64_t value);

}  // namespace takt::store
