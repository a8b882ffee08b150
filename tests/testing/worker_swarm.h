// SPDX-License-Identifier: Apache-2.0
// Emulates workers that compute nothing: each attaches, accepts its assignments, and reports steps
// that no one computed. It shows how much load a coordinator can take.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace takt::testing {

struct SwarmOptions {
  std::string coordinator;  // "unix:PATH" or "HOST:PORT"
  // Directory of the authority (common/certificates) that gives each worker its certificate. Empty:
  // they connect without TLS.
  std::string authority;
  int num_workers = 1;
  // This many workers share the connection of their host, as behind its relay. They are then named
  // host-H-N. 0: each has a connection of its own. It must divide num_workers.
  int workers_per_host = 0;
  std::int64_t steps = 1;  // of every job that is submitted to it
  bool traces = true;      // each report with the trace of its step, as real ones
  // A rank tells where it listens and waits for its neighbours through the rendezvous before it is
  // admitted, as real ones do over TCP.
  bool meets = false;
};

// Thread-safe. Callbacks run on gRPC's threads.
class WorkerSwarm {
 public:
  static std::unique_ptr<WorkerSwarm> Start(SwarmOptions options);
  // Cuts all connections.
  virtual ~WorkerSwarm() = default;

  // Breaks the connections of the first `num_workers` workers, or of as many whole hosts, all at
  // once. The workers dial again as the same processes, with the ranks that they hold.
  // Precondition: none of their reports waits for its acknowledgement. AwaitAttached waits until
  // they are back.
  virtual void Reconnect(int num_workers) = 0;

  // Each of these returns false if not all workers got there in time.
  virtual bool AwaitAttached(absl::Duration timeout) = 0;
  virtual bool AwaitTraining(absl::Duration timeout) = 0;
  // All workers that trained were told to stop, or have failed.
  virtual bool AwaitStopped(absl::Duration timeout) = 0;
  // The rank of this worker fails, as by an error of its own.
  virtual void Fail(int worker) = 0;
  // Returns the workers of each job that trains.
  virtual std::vector<std::vector<int>> WorkersOfJobs() const = 0;
  // Reports one step of one worker, with its trace. Does nothing once it has reported all steps.
  virtual void Step(int worker) = 0;
  virtual bool AwaitAcknowledged(absl::Duration timeout) = 0;

  struct Counts {
    std::int64_t reported = 0, acknowledged = 0;
    std::int64_t lost_streams = 0;  // ended though nobody asked
    std::int64_t largest_assignment_bytes = 0;
  };
  virtual Counts counts() const = 0;
  // Returns the times from a report to its acknowledgement, which says that the step is durable, of
  // all that were acknowledged since the last call.
  virtual std::vector<double> TakeAckSeconds() = 0;
};

}  // namespace takt::testing
