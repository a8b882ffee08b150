// SPDX-License-Identifier: Apache-2.0
// What to do with a job that holds its gang: a pure function of what is known about its ranks.
//
//   QUEUED --(gang is there)--> PLANNING --(plan)--> STARTING --(all admitted)--> RUNNING --(all
//   finished)--> SUCCEEDED
//    ^  |                          |                     |                          | |
//    |  +------ (paused) ----------+---------------------+--- kStop, ranks let go --+ |
//    |  v                                                                           | |
//    | PAUSED <----------------------- (asked to halt, all halted) -----------------|-+
//    |                                                                              |
//    +-- (resumed; a worker left while planning; all halted for another reason)     |
//    |                                                                              |
//    +-- (ranks let go) -- RECOVERING <-- (fault, and it has checkpoints) -- kStop --+
//                                                                                   |
//                          FAILED | CANCELLED <-- (ranks let go) ----------- kStop --+
//
// RECOVERING leads to PAUSED if that was asked for. A run ends only when its last checkpoint is
// visible or has failed (saving.h), except when it is cancelled. Decide covers STARTING, RUNNING
// and RECOVERING; queue.h decides who leaves QUEUED, cluster_halt.cc has what users and leaving
// workers ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/control/assignment.h"
#include "common/control/rank_status.h"
#include "coordinator/store/record.h"
#include "coordinator/timeouts.h"

namespace takt::job {

enum class RankPhase : std::uint8_t {
  kAway,       // after a restart or a stall of the coordinator: not heard from yet
  kPreparing,  // told to prepare
  kAdmitted,
  kRunning,  // told to start
  kFinished,
  kHalted,  // ended at the step boundary that was asked for
  kRefused,
  kFailed,
  kAborted,
};

// True once the worker has told how its rank ended.
constexpr bool IsTerminal(RankPhase phase) { return phase >= RankPhase::kFinished; }

struct RankRun {
  control::BoundRank bound;
  RankPhase phase = RankPhase::kPreparing;
  std::optional<std::string> lost;     // why its worker is gone
  std::string error;                   // of kRefused, kFailed, kAborted
  bool invalid_input = false;          // of kRefused
  std::vector<FieldError> violations;  // of invalid_input
  control::RankStatus status;          // last reported
  StepId resumed_step;                 // from kAdmitted on
  std::string kernel_plan;             // likewise, of rank 0
};

struct JobRun {
  store::JobState state = store::JobState::kStarting;  // or kRunning, kRecovering
  std::optional<store::JobStop> stop;
  std::optional<store::JobHalt> halt;
  bool has_checkpoints = false;  // without them a fault is the end
  store::Recoveries recoveries;
  std::vector<std::string> past_faults;  // of `recoveries`
  StepId checkpoint;                     // the newest that is visible; 0: none
  std::string saving;                    // what open checkpoints wait for; empty: there are none
  std::int64_t steps = 0;
  std::int64_t committed_steps = 0;  // or those before the checkpoint it resumed from
  std::vector<RankRun> ranks;
  absl::Duration since;  // steady; when this state began here, or the last rank went away
  std::optional<absl::Duration> stop_since;    // when the stop was told
  std::optional<absl::Duration> finish_since;  // when the last rank finished
};

struct DecideOptions {
  absl::Duration admission_timeout = coordinator::kAdmissionTimeout;
  absl::Duration return_grace = coordinator::kReturnGrace;
  absl::Duration stop_grace = coordinator::kStopGrace;
  absl::Duration reports_grace = coordinator::kReportsGrace;
  // In a row without a step that was not committed before.
  int max_recoveries = 3;
};

struct Decision {
  enum class Kind : std::uint8_t {
    kWait,   // nothing to do; `reason` says for what
    kStart,  // all are admitted: RUNNING, tell them to start
    kStop,   // end it as `state` (FAILED or RECOVERING): tell the ranks to let go
    kEnd,    // it is over as `state`
  };
  Kind kind = Kind::kWait;
  std::string reason;
  store::JobState state = store::JobState::kRunning;
  bool invalid_input = false;
  std::vector<FieldError> violations;  // of invalid_input
};

Decision Decide(absl::Duration now, const JobRun& run, const DecideOptions& options);

// For people: what went wrong first, where it was, and what every other rank was waiting for.
std::string DescribeFault(const JobRun& run);

}  // namespace takt::job
