// SPDX-License-Identifier: Apache-2.0
// Keeps the faults for which workers are blamed, and decides which workers get no work for a while.
//
//   - Two faults within an hour, or three within a day, quarantine a worker, if at least two jobs
//     blame it. From one job alone, only that job avoids it.
//   - A quarantine lasts ten minutes, and each time in a row for twice as long, a day at most.
//     After a day without a fault, everything is forgotten.
//   - An error that proves to be its job's own is taken back. A quarantine that the other faults
//     would not have begun ends.
//   - At most a twentieth of the workers, but always at least one, is quarantined at the same time.
//     Beyond that the cluster or a job is more likely at fault than its workers, so faults are only
//     shown.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/membership/membership.h"
#include "coordinator/store/record.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct QuarantineOptions {
  int soon_faults = 2;
  absl::Duration soon = timeouts::kBlameSoon;
  int late_faults = 3;
  absl::Duration late = timeouts::kBlameLate;
  int jobs = 2;
  absl::Duration first = timeouts::kFirstQuarantine;
  absl::Duration longest = timeouts::kLongestQuarantine;
  double share = 0.05;
};

// Pure, except for the state that it keeps. One caller at a time. Times are of a WaitClock, because
// they are stored.
class Quarantine final {
 public:
  using Records = std::map<std::string, store::WorkerRecord>;

  // records: from the store.
  explicit Quarantine(Records records = {}, QuarantineOptions options = {})
      : options_(options), records_(std::move(records)) {}

  // num_workers: how many are known and not lost.
  void Blame(const std::string& worker, store::WorkerFault fault, int num_workers);
  // Forgets what is held against the worker.
  void Trust(const std::string& worker);
  // Takes back the faults for which the job blamed workers with this text. Returns these workers.
  std::set<std::string> Forgive(const std::string& job, const std::string& what, absl::Time now);
  // Ends each quarantine whose time is over. Returns the workers whose quarantine has ended, or
  // against which nothing is held any more.
  std::set<std::string> Tick(absl::Time now);

  // Returns what people are shown, and whether the worker gets work.
  membership::Blame Of(const std::string& worker, absl::Time now) const;
  // Returns the workers that this job blamed within the last hour, with the number of faults.
  std::map<std::string, int> BlamedBy(const std::string& job, absl::Time now) const;
  // Returns what has changed since the last call, to be stored.
  Records TakeChanges();

 private:
  // Returns the time of a quarantine that follows so many others.
  absl::Duration TimeAfter(int quarantines) const;
  // True if the faults of the record suffice for a quarantine.
  bool Deserves(const store::WorkerRecord& record, absl::Time now) const;
  bool IsQuarantined(const store::WorkerRecord& record, absl::Time now) const;

  const QuarantineOptions options_;
  Records records_;
  Records changes_;
  std::set<std::string> spared_;  // deserved a quarantine when there were too many
};

}  // namespace takt::job
