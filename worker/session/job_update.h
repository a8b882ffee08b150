// SPDX-License-Identifier: Apache-2.0
// What a worker says about the rank it holds. The wire form is takt.v1.JobUpdate, Heartbeat,
// RankStepReport and CheckpointReport.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/checkpoint/manifest.h"

namespace takt::session {

// One generation of one job.
struct JobKey {
  std::string job;
  Generation generation;
  auto operator<=>(const JobKey&) const = default;
};

// One entry of the flight recorder.
struct DoneInstruction {
  std::string instruction;  // e.g. "1F3"
  StepId step;
  double seconds = 0;            // it took
  double ended_seconds_ago = 0;  // before the status that it is part of
};
inline constexpr std::size_t kRecentInstructions = 16;

struct RankStatus {
  StepId last_step;                     // completed; 0: none
  std::string instruction;              // current or last on the compute lane, e.g. "1F3"
  std::string waiting_for;              // e.g. "RECV 1F3 from pp rank 0"; empty: nothing
  StepId instruction_step;              // of `instruction`; 0: it is part of none
  double instruction_seconds = 0;       // for which it has been at `instruction`
  std::vector<DoneInstruction> recent;  // the last it had done, by their ends
};

// Numbers equal takt.v1.JobUpdate.Phase, where the meanings are.
enum class Phase : std::uint8_t {
  kAdmitted = 1,
  kRefused = 2,
  kFinished = 3,
  kFailed = 4,
  kAborted = 5,
  kHalted = 6
};

// What a rank goes on from.
struct Resumed {
  StepId step;  // 0: the beginning
  // Of rank 0 alone: newer checkpoints that were passed over, and why; which kernels all compute
  // with, and where that choice is from (empty: they need none).
  std::vector<std::string> notes;
  std::string kernel_plan;
};

struct JobUpdate {
  JobKey key;
  Rank rank;
  Phase phase = Phase::kAdmitted;
  absl::Status
      error;  // of kRefused, kFailed, kAborted; kInvalidArgument: the job is wrong, not the worker
  RankStatus status;
  Resumed resumed;  // of kAdmitted
};

struct StepReport {
  Rank rank;
  StepId step;
  double step_seconds = 0;
  double busy_seconds = 0;  // compute lane
  // Known to rank 0 alone.
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;
  std::optional<double> validation_loss;
};

// One rank's part of a checkpoint: its files are written, or `error`.
struct CheckpointReport {
  Rank rank;
  StepId step;
  std::vector<checkpoint::FileEntry> files;
  double snapshot_seconds = 0;  // for which training paused
  double write_seconds = 0;
  absl::Status error;
};

// What goes up in the acknowledged sequence of a rank.
using Report = std::variant<StepReport, CheckpointReport>;

}  // namespace takt::session
