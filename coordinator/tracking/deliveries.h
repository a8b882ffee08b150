// SPDX-License-Identifier: Apache-2.0
// Brings steps from the step log to a tracking server, in order and without a gap.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/store/store.h"
#include "coordinator/tracking/tracker.h"

namespace takt::tracking {

// One caller at a time.
class Deliveries final {
 public:
  using Jobs = std::vector<std::shared_ptr<const store::JobRecord>>;

  // Both are borrowed. Jobs that ended before `since` are left alone.
  Deliveries(Tracker* tracker, store::Store* store, absl::Time since)
      : tracker_(tracker), store_(store), since_(since) {}

  // Delivers what the server lacks of these jobs, which are all that there are. Returns the first
  // error. If the server is away (kUnavailable) the round ends there, and otherwise it goes on with
  // the next job. The next round tries again.
  absl::Status Round(const Jobs& jobs);

 private:
  struct Progress {
    bool open = false, done = false;
    StepId last;  // that the server has
  };

  absl::Status Deliver(const store::JobRecord& job, Progress& progress);

  Tracker* const tracker_;
  store::Store* const store_;
  const absl::Time since_;
  std::map<std::string, Progress> progress_;  // by the job's id
};

}  // namespace takt::tracking
