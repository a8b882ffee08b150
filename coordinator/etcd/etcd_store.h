// SPDX-License-Identifier: Apache-2.0
// The store in etcd. Its keys are in README.md beside this file.
//
// Every write is a transaction that takes effect only while this process leads and nobody has
// written in between. If the answer is lost, the same transaction is sent again; its other branch
// tells whether the first one took effect.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/etcd/election.h"
#include "coordinator/etcd/reader.h"
#include "coordinator/etcd/writes.h"
#include "coordinator/store/store.h"

namespace takt::etcd {

struct EtcdStoreOptions {
  store::StoreLimits limits = {.log_lines = 2'000};
  std::int64_t steps = 100'000;  // newest kept, per job; 0: all
  WriteLimits writes;
};

// reader: of the cluster's keys; borrowed. leadership: borrowed, for the store's life; null: the
// store of a coordinator that follows, which only reads.
//
// The store of a leader first finishes the change that the leader before it had decided and not
// carried out. A store that only reads answers kUnavailable to Load while there is such a change,
// and to every write.
//
// Errors: as Store::Load.
absl::StatusOr<std::unique_ptr<store::Store>> OpenEtcdStore(Reader* reader,
                                                            const Leadership* leadership,
                                                            EtcdStoreOptions options = {});

}  // namespace takt::etcd
