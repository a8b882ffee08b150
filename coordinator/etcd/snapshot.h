// SPDX-License-Identifier: Apache-2.0
// Reads the whole state from etcd, at one revision.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/etcd/reader.h"
#include "coordinator/store/store.h"

namespace takt::etcd {

struct State {
  store::Snapshot snapshot;
  std::int64_t commits = 0;   // transactions that were ever decided
  std::int64_t revision = 0;  // of etcd, when it was read
};

// Errors: as Reader::List; kDataLoss (a value does not parse; names the key).
absl::StatusOr<State> ReadState(const Reader& reader);

// Answered requests, oldest first: number and key (kRequests).
using RequestOrder = std::deque<std::pair<std::int64_t, std::string>>;
absl::StatusOr<RequestOrder> ReadRequestOrder(const Reader& reader);

// Parses a number in decimal digits. kDataLoss: it is none.
absl::StatusOr<std::int64_t> ParseNumber(const Reader& reader, const Entry& entry);
// Returns kDataLoss that names the key.
absl::Status Unreadable(const Reader& reader, const Entry& entry);

}  // namespace takt::etcd
