// SPDX-License-Identifier: Apache-2.0
// What the cluster says to a worker, and the streams it says it on. coordinator/rpc implements them
// over gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "coordinator/store/record.h"

namespace takt::job {

// One generation of one job.
struct JobKey {
  std::string job;
  Generation generation;
  bool operator==(const JobKey&) const = default;
};

// One generation ready to be given to its ranks; shared by their Prepare commands.
struct Launch {
  JobKey key;
  std::string spec;  // takt.v1.JobSpec, serialized
  plan::Plan plan;
  config::TransportKind transport = config::TransportKind::kAuto;
  config::DeviceKind device = config::DeviceKind::kCpu;
  std::vector<store::BoundRank> ranks;
  std::vector<int> threads;  // by rank
  std::string secret;        // 32 random bytes; never stored, never logged
  std::string resume;        // which checkpoint to go on from: "auto", "none" or a step
  StepId resume_at_most;     // none above it; 0: any
};

struct Welcome {};
struct Prepare {
  std::shared_ptr<const Launch> launch;
  Rank rank;
};
struct Start {
  JobKey key;
};
struct Abort {
  JobKey key;
  std::string reason;
};
struct Acknowledge {
  JobKey key;
};
// End at a step boundary, with a checkpoint.
struct Halt {
  JobKey key;
  std::string reason;
};
// Make a checkpoint visible that all ranks have written.
struct CommitCheckpoint {
  JobKey key;
  StepId step;
  std::string directory;
  int keep = 1;
  std::string manifest;  // text of manifest.json
};
using Command = std::variant<Welcome, Prepare, Start, Abort, Acknowledge, Halt, CommitCheckpoint>;

// A worker's control stream. Thread-safe; never blocks; does nothing once the stream has ended.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  virtual void Send(const Command& command) = 0;
  // Ends the stream with `status`.
  virtual void Close(const absl::Status& status) = 0;
};

// A worker's bulk stream. Thread-safe; never blocks; does nothing once the stream has ended.
class BulkSession {
 public:
  virtual ~BulkSession() = default;
  virtual void Acknowledge(const JobKey& key, std::int64_t sequence) = 0;
};

}  // namespace takt::job
