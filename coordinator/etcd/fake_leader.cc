// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/fake_leader.h"

#include <utility>

#include "absl/status/statusor.h"

namespace takt::etcd {

bool FakeCandidate::Lead(const std::string& address, absl::Duration lease) {
  absl::StatusOr<Standing> standing = TryToLead(reader, {.address = address, .lease = lease});
  TAKT_CHECK(standing.ok());
  leadership = std::move(standing->leadership);
  leader = standing->leader;
  return leadership != nullptr;
}

}  // namespace takt::etcd
