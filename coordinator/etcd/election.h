// SPDX-License-Identifier: Apache-2.0
// Decides which coordinator leads. One transaction takes the key `leader` under a lease, if nobody
// holds it, and raises the epoch. The lease only says when another coordinator may try. A deposed
// leader can do no harm, because each of its writes compares the key
// (coordinator/etcd/etcd_store.h), and workers compare the epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "coordinator/etcd/etcd_client.h"
#include "coordinator/etcd/reader.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::etcd {

// The leadership of this process. A thread renews its lease. The destructor gives it up, so that
// another coordinator leads soon; nothing may be written after that. Thread-safe.
class Leadership final {
 public:
  struct Options {
    std::int64_t lease_id = 0, revision = 0, epoch = 0;
    absl::Duration lease;
    absl::Duration granted;  // steady time: before the lease was asked for
  };
  // client: borrowed.
  Leadership(EtcdClient* client, const Options& options);
  ~Leadership();

  // Returns false once the lease may have expired. It then never returns true again.
  bool Holds() const;
  // How long the lease lasts if it is not renewed any more; 0: it may have expired.
  absl::Duration Left() const;
  // OK while Holds would be true, and otherwise why not.
  absl::Status Check() const;

  // The revision at which this process became leader. No other leader has it.
  std::int64_t revision() const { return options_.revision; }
  std::int64_t epoch() const { return options_.epoch; }
  absl::Duration lease() const { return options_.lease; }

 private:
  void Renew();

  EtcdClient* const client_;
  const Options options_;
  mutable absl::Mutex mutex_;
  SteadyCondVar end_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration renewed_ ABSL_GUARDED_BY(mutex_);  // when the last renewal was sent
  absl::Status loss_ ABSL_GUARDED_BY(mutex_);       // why the lease is lost
  std::thread thread_;                              // last: it uses everything above
};

struct ElectionOptions {
  std::string address;  // of this coordinator, for its clients
  absl::Duration lease = timeouts::kLeaderLease;
};

// What an attempt to lead has found.
struct Standing {
  std::unique_ptr<Leadership> leadership;  // null: another coordinator leads, or nobody does yet
  std::string leader;                      // the address of the one that leads; empty: nobody does
  std::int64_t epoch = 0;                  // of the leader, or of the last one
  std::string commits;                     // changes when the state does
};

// Leads if nobody does. reader: of the cluster's keys. Errors: as EtcdClient; kFailedPrecondition
// (the state is of a newer program).
absl::StatusOr<Standing> TryToLead(const Reader& reader, const ElectionOptions& options);

}  // namespace takt::etcd
