// SPDX-License-Identifier: Apache-2.0
// One rank's part of one job, from files and connections to the last step. Behind an interface so
// that the session's logic is tested without engine, transport or trainer.
#pragma once

#include <cstdint>
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
  config::DeviceKind device = config::DeviceKind::kAuto;  // kAuto: cores
  std::string secret;
  // Which checkpoint to go on from: "auto" (the newest that loads), "none", or a step.
  std::string resume = "none";
  StepId resume_at_most;  // none above this step; 0: any
};

enum class RunEnd : std::uint8_t { kLastStep, kHalted };

// Thread-safe except Prepare and Run: one caller, Prepare once, then Run once. Destruction closes
// connections; nothing of the runner is in use by then.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  // Sees files, allocates, connects to its peers, loads the checkpoint to go on from.  Blocks:
  // until all peers are there.  Errors: kInvalidArgument (what is wrong with the job), others: what
  // is wrong here or with a peer.
  virtual absl::StatusOr<Resumed> Prepare() = 0;
  // Trains to the job's last step, or to the one that all ranks agree on after Halt, and saves what
  // is due. report: called by one thread at a time; of each kind, in order of steps, and a step
  // before its checkpoint.  Errors: the first one of any part; a checkpoint that failed is none.
  virtual absl::StatusOr<RunEnd> Run(const std::function<void(Report)>& report) = 0;
  // Asks for the end at a step boundary; once a rank of the job was asked, all end at the same one.
  // At any time: before Run, it ends after the first steps.
  virtual void Halt() = 0;
  // Ends Prepare and Run soon, in whatever they wait.
  virtual void Stop(const absl::Status& reason) = 0;
  // At any time. After an error: what it was doing when that came.
  virtual RankStatus Status() const = 0;
  // Asked once nothing runs any more. Not OK: only a new process can compute again, and why.
  virtual absl::Status Poisoned() { return absl::OkStatus(); }
};

using RankRunnerFactory = std::function<std::unique_ptr<RankRunner>(Assignment)>;

}  // namespace takt::session
