// SPDX-License-Identifier: Apache-2.0
// One rank's part of one job, from files and connections to the last step. Behind an interface so
// that the session's logic is tested without engine, transport or trainer.
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

// What goes up in the acknowledged sequence of a rank. The outbox fills in the key and the
// sequence.
using Report = std::variant<control::RankStepReport, control::CheckpointReport>;

enum class RunEnd : std::uint8_t { kLastStep, kHalted };

// Thread-safe except Prepare and Run: one caller, Prepare once, then Run once. Destruction closes
// connections; nothing of the runner is in use by then.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  // Sees files, allocates, connects to its peers, loads the checkpoint to go on from.  Blocks:
  // until all peers are there.  Errors: kInvalidArgument (what is wrong with the job), others: what
  // is wrong here or with a peer.
  virtual absl::StatusOr<control::Resumed> Prepare() = 0;
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
  virtual control::RankStatus Status() const = 0;
  // Asked once nothing runs any more. Not OK: only a new process can compute again, and why.
  virtual absl::Status Poisoned() { return absl::OkStatus(); }
};

using RankRunnerFactory = std::function<std::unique_ptr<RankRunner>(control::Assignment)>;

}  // namespace takt::session
