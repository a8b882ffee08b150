// SPDX-License-Identifier: Apache-2.0
// Brings steps from the step log to a tracking server, in order and without a gap.
#pragma once

#include <map>
#include <memory>
#include <optional>
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

  // The most rounds for which a job that the server refuses is left out.
  static constexpr int kMostRest = 150;

  // Delivers what the server lacks of these jobs, which are all that there are. If the server is
  // away (kUnavailable) the round ends there, and the next one tries again. A job that the server
  // refuses is left out of the next 1, 2, 4, ... rounds, and delays no other job.
  // Returns that the server is away, or the first refusal, even if it is of a job that is left out.
  absl::Status Round(const Jobs& jobs);

 private:
  struct Progress {
    std::optional<TrackedRun> run;  // once the server has it
    bool done = false;
    absl::Status refusal;         // of the last try
    int rest = 0, next_rest = 1;  // rounds
  };

  absl::Status Deliver(const store::JobRecord& job, Progress& progress);

  Tracker* const tracker_;
  store::Store* const store_;
  const absl::Time since_;
  std::map<std::string, Progress> progress_;  // by the job's id
};

}  // namespace takt::tracking
