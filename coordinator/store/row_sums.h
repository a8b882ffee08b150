// SPDX-License-Identifier: Apache-2.0
// SQL functions with which every row of a state file carries a checksum, and all rows together one
// total. The total finds rows that have vanished, which no checksum of a row can.
#pragma once

#include <cstdint>

struct sqlite3;

namespace takt::store {

// Registers, on this connection:
//   takt_sum(TABLE, VALUE...)  XXH3-64 of the name of the table and of the types and values
//   takt_added(SUM)            adds a row's checksum to *total, modulo 2^64
//   takt_removed(SUM)          takes it away
// total: borrowed; it lives longer than the connection. Returns an SQLite result code.
int RegisterRowSums(sqlite3* db, std::uint64_t* total);

}  // namespace takt::store
