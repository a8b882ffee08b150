// SPDX-License-Identifier: Apache-2.0
// One rank's part of one job, from reading files and connecting to the last step. It is an
// interface, so that the session's logic can be tested without engine, transport or trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/control/rank_status.h"
#include "common/control/reports.h"

namespace takt::session {

// A rank sends these in its acknowledged sequence. The outbox fills in the key and the sequence.
using Report = std::variant<control::RankStepReport, control::CheckpointReport>;

enum class RunEnd : std::uint8_t { kLastStep, kHalted };

// Thread-safe except Prepare and Run: one caller calls Prepare once, then Run once. The destructor
// closes the connections; no call may be in progress then.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  // Opens files, allocates memory, connects to the peers and loads the checkpoint to resume from.
  // Blocks: until all peers have connected. Errors: kInvalidArgument (something is wrong with the
  // job); all others mean that something is wrong here or with a peer.
  virtual absl::StatusOr<control::Resumed> Prepare() = 0;
  // Trains to the job's last step, or to the one that all ranks agree on after Halt, and saves the
  // checkpoints that are due: also after the last step, unless all were asked to halt in memory.
  // report: called by one thread at a time. The reports of each kind come in the order of steps,
  // and a step comes before its checkpoint.
  // Errors: the first one of any part. A checkpoint that failed is not an error.
  virtual absl::StatusOr<RunEnd> Run(const std::function<void(Report)>& report) = 0;
  // Asks for the end at a step boundary. Once a rank of the job was asked, all ranks end at the
  // same boundary. May be called at any time; if it is called before Run, the run ends after the
  // first steps. in_memory: nothing is saved for it if the ranks keep copies of their state in
  // memory. That can be taken back by a Halt that saves, as long as the ranks have not agreed.
  virtual void Halt(bool in_memory) = 0;
  // Ends Prepare and Run soon, whatever they wait for.
  virtual void Stop(const absl::Status& reason) = 0;
  // May be called at any time. After an error it says what the rank was doing when the error came.
  virtual control::RankStatus Status() const = 0;
  // Called once nothing runs any more. An error means that only a new process can compute again,
  // and says why.
  virtual absl::Status Poisoned() { return absl::OkStatus(); }
};

using RankRunnerFactory = std::function<std::unique_ptr<RankRunner>(control::Assignment)>;

}  // namespace takt::session
