// SPDX-License-Identifier: Apache-2.0
// Workers that only talk: each attaches on a connection of its own, takes what it is given, and
// tells of steps that nobody computed. For what a coordinator can take.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace takt::testing {

struct SwarmOptions {
  std::string coordinator;  // "unix:PATH"
  int num_workers = 1;
  std::int64_t steps = 1;  // of every job that is submitted to it
  bool traces = true;      // each report with the trace of its step, as real ones
};

// Thread-safe. Callbacks run on gRPC's threads.
class WorkerSwarm {
 public:
  static std::unique_ptr<WorkerSwarm> Start(SwarmOptions options);
  // Cuts all connections.
  virtual ~WorkerSwarm() = default;

  // False: not all of them in time.
  virtual bool AwaitAttached(absl::Duration timeout) = 0;
  virtual bool AwaitTraining(absl::Duration timeout) = 0;
  // One step of one worker: its report, and its trace. Nothing once it has told of all.
  virtual void Step(int worker) = 0;
  virtual bool AwaitAcknowledged(absl::Duration timeout) = 0;

  struct Counts {
    std::int64_t reported = 0, acknowledged = 0;
    std::int64_t lost_streams = 0;  // ended though nobody asked
  };
  virtual Counts counts() const = 0;
  // From a report to its acknowledgement, which says that the step is durable; since the last call.
  virtual std::vector<double> TakeAckSeconds() = 0;
};

}  // namespace takt::testing
