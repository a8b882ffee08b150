// SPDX-License-Identifier: Apache-2.0
// The outbox lists what the cluster wants done, in order.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job/board.h"
#include "coordinator/job/effects.h"
#include "coordinator/store/store.h"

namespace takt::job {

// A checkpoint that has become visible or has failed, for metrics.
struct SettledCheckpoint {
  std::string job;
  bool failed = false;
  double snapshot_seconds = 0, write_seconds = 0;  // of the slowest rank
};

// How long a job did not train after a fault, by what it waited for. For metrics.
struct RecoveryTimes {
  absl::Duration stop;   // until its ranks had let go
  absl::Duration queue;  // until its gang was there
  absl::Duration start;  // until all ranks had planned, loaded and connected
};

// The reader commits `changes` first. If that succeeds, it shows `published` and `removed`, and
// then carries out `effects`.
struct Outbox {
  store::Changes changes;
  std::vector<JobView> published;
  std::vector<std::string> removed;  // job ids
  std::vector<Effect> effects;
  std::vector<SettledCheckpoint> checkpoints;
  std::vector<RecoveryTimes> recoveries;
  std::vector<std::string> recovering;  // names of jobs that had a fault and go on
  int workers_lost = 0;

  // True if nothing is to be stored, shown or done. What is for metrics alone does not count.
  bool empty() const {
    return changes.empty() && published.empty() && removed.empty() && effects.empty();
  }

  // Adds what the cluster wants done after this.
  void Append(Outbox more);
};

}  // namespace takt::job
