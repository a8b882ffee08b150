// SPDX-License-Identifier: Apache-2.0
// A coordinator whose state is in etcd follows until it leads. It answers reads meanwhile, from
// what the leader has written, at most about a second ago.
#pragma once

#include <signal.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/registry.h"
#include "coordinator/etcd/election.h"
#include "coordinator/etcd/etcd_client.h"
#include "coordinator/etcd/reader.h"
#include "coordinator/flags.h"
#include "coordinator/store/state_dir.h"
#include "coordinator/store/store.h"

namespace takt::coordinator {

// The state of a coordinator that leads, and its leadership, which ends when this is destroyed.
struct LedState {
  std::unique_ptr<etcd::EtcdClient> client;
  std::unique_ptr<etcd::Reader> reader;
  std::unique_ptr<etcd::Leadership> leadership;
  std::unique_ptr<store::Store> store;
  std::string listen;  // where it served while it followed; its clients expect it there
};

// What FollowUntilLeader needs. All are borrowed.
struct FollowParts {
  const Flags& flags;
  const store::StateDir& state;
  metrics::Registry& registry;
  const sigset_t& signals;  // which end it; they are blocked
  store::Addresses addresses;
};

// Blocks until this process leads. Null: a signal came. Errors: of etcd, if they do not heal; of
// the server.
absl::StatusOr<std::unique_ptr<LedState>> FollowUntilLeader(const FollowParts& parts);

}  // namespace takt::coordinator
