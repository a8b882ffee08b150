// SPDX-License-Identifier: Apache-2.0
// The interface to a tracking server, where people compare the curves of jobs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "coordinator/store/record.h"

namespace takt::tracking {

// A job as the server shows it.
struct TrackedJob {
  std::string id, name, owner;
  std::string experiment;                         // where its run appears
  absl::Time start;                               // when it was submitted
  std::map<std::string, std::string> parameters;  // the fields of its file
};

// Where the curves of a job are on the server.
struct TrackedRun {
  std::string id;  // of the server
  StepId last;     // the last step that it has; 0: none
};

// One caller at a time.  Blocks: every call, for the server, at most some seconds.
// Errors: kUnavailable (the server does not answer; later it may), kPermissionDenied, others with
// what the server says. A call that failed may be repeated.
class Tracker {
 public:
  virtual ~Tracker() = default;

  // Makes the run of a job, or finds it.
  virtual absl::StatusOr<TrackedRun> Open(const TrackedJob& job) = 0;

  // Adds steps to a run; at most kMostSteps, ascending. Steps that it has already stay as they are.
  static constexpr int kMostSteps = 100;
  virtual absl::Status Append(const std::string& run_id,
                              const std::vector<store::StepRecord>& steps) = 0;

  // Says that the job of a run has ended, and how.
  virtual absl::Status Close(const std::string& run_id, store::JobState state, absl::Time end) = 0;
};

}  // namespace takt::tracking
