// SPDX-License-Identifier: Apache-2.0
// One rank's part of one job, from files and connections to the last step. Behind an interface so
// that the session's logic is tested without engine, transport or trainer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "common/program/program.h"
#include "worker/session/job_update.h"

namespace takt::session {

// What the coordinator hands out for one rank. The wire form is takt.v1.Assignment.
struct Assignment {
  JobKey key;
  Rank rank;
  config::JobSpec job;
  mesh::Mesh mesh;
  mesh::Partition partition;
  program::Program program;  // of this rank's pp rank
  std::optional<program::Program> validation_program;
  int threads = 0;  // 0: the worker's own choice
  config::TransportKind transport = config::TransportKind::kAuto;
  std::string secret;
  StepId resume_step;  // the step to start after
};

// Thread-safe except Prepare and Run: one caller, Prepare once, then Run once. Destruction closes
// connections; nothing of the runner is in use by then.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  // Sees files, allocates, connects to its peers.  Blocks: until all peers are there.
  // Errors: kInvalidArgument (what is wrong with the job), others: what is wrong here or with a
  // peer.
  virtual absl::Status Prepare() = 0;
  // Trains to the job's last step. on_step: from one thread, in order.  Errors: the first one of
  // any part.
  virtual absl::Status Run(const std::function<void(const StepReport&)>& on_step) = 0;
  // Ends Prepare and Run soon, in whatever they wait.
  virtual void Stop(const absl::Status& reason) = 0;
  // At any time. After an error: what it was doing when that came.
  virtual RankStatus Status() const = 0;
};

using RankRunnerFactory = std::function<std::unique_ptr<RankRunner>(Assignment)>;

}  // namespace takt::session
