// SPDX-License-Identifier: Apache-2.0
// What to do with a job that holds its gang: a pure function of what is known about its ranks.
//
//   QUEUED -(gang)-> PLANNING -(plan)-> STARTING -(admitted)-> RUNNING -(finished)-> SUCCEEDED
//
//   From                To              When
//   QUEUED, PLANNING    PAUSED          a user pauses the job
//   PAUSED              QUEUED          a user resumes it
//   PLANNING            QUEUED          a worker left meanwhile
//   PLANNING            FAILED          there is no plan
//   STARTING            PAUSED, QUEUED  it was asked to halt (kStop): its ranks have let go
//   RUNNING             PAUSED, QUEUED  it was asked to halt: all ranks have halted
//   STARTING, RUNNING   RECOVERING      a fault after which the job may go on (kStop)
//   RECOVERING          QUEUED          its ranks have let go
//   STARTING, RUNNING   FAILED          a fault that ends the job (kStop): its ranks have let go
//   any before its end  CANCELLED       a user cancels it (kStop): its ranks have let go
//
// RECOVERING leads to PAUSED if that was asked for, and to FAILED if the job is given up (blame.h).
// A job that halted for a better plan goes from RUNNING through PLANNING to STARTING at once, with
// the workers that it has (replan.h). A run ends only when its last checkpoint is visible or has
// failed (saving.h), except when it is cancelled. If the checkpoint of the job's last step has
// failed, that is a fault, because the job's result is not there. After a fault a job goes on if it
// has checkpoints, or if a worker refused its rank for a reason of its own, so that nothing was
// done yet. Decide covers STARTING, RUNNING and RECOVERING; placement/queue.h decides which job
// leaves QUEUED, job.h has what users and leaving workers ask for.
//
// A job with invalid input is never retried. So its input counts as invalid only if a rank says
// that any worker would find it so, or if all ranks refuse the inputs that all of them check. If
// only some ranks refuse them, something is wrong with their workers. What one rank alone tries,
// such as to make the checkpoint directory, is tried again first, and counts as invalid if the job
// is given up for it before its first step (WrongFields).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/job_spec.h"
#include "coordinator/job/replan.h"
#include "coordinator/job/session.h"
#include "coordinator/job/step_collector.h"
#include "coordinator/job/stragglers.h"
#include "coordinator/membership/membership.h"
#include "coordinator/store/record.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

enum class RankPhase : std::uint8_t {
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
  std::optional<std::string> lost;  // why its worker is gone
  std::optional<std::string> away;  // why its worker is silent now; unset if it is lost
  bool leaves = false;              // its worker was asked to end
  std::string error;                // of kRefused, kFailed, kAborted
  control::Cause cause = control::Cause::kUnknown;  // likewise
  bool invalid_input = false;          // of kRefused: the job is wrong, whatever other ranks say
  std::vector<FieldError> violations;  // of kRefused
  control::RankStatus status;          // last reported
  StepId resumed_step;                 // from kAdmitted on
  bool from_memory = false;            // likewise: it resumes from copies in memory
  std::string kernel_plan;             // likewise, of rank 0
  std::shared_ptr<BulkSession> bulk;   // of its last report, which is acknowledged there
};

// Holds what is known of the generation that holds a gang, besides the job's record.
struct JobRun {
  // The oldest open checkpoint, while it is complete and not visible yet.
  struct Commit {
    absl::Duration since;
    membership::SessionId asked;  // 0: no worker yet
    std::string manifest;
  };

  // Makes the run that begins, or goes on after a restart, with the ranks of `job`.
  static JobRun Of(const store::JobRecord& job, const config::JobSpec& spec, mesh::Mesh mesh,
                   RankPhase phase, absl::Duration now);

  // Without checkpoints in files and copies in memory a fault is the end.
  bool has_checkpoints = false;
  bool keeps_copies = false;
  std::vector<RankRun> ranks;
  // The last step taken is the last one that is committed, here or before the job was adopted, or
  // the one of the checkpoint from which the generation resumed.
  StepCollector steps{mesh::Mesh(), StepId(0)};
  bool acknowledge = false;  // reports came since the last acknowledgement
  std::optional<Commit> commit;
  std::string saving;       // what open checkpoints wait for; empty: there are none
  std::string failed_save;  // which checkpoint failed last, and why; empty: none did
  absl::Duration since;     // steady; when the state began here
  // Steady; when the job had its last fault, or this coordinator came to know it after that.
  absl::Duration tried_since;
  // Steady; when a rank was last known to make progress: to do, load or connect something else.
  absl::Duration progress = -absl::InfiniteDuration();
  std::optional<absl::Duration> refused_since;  // when the first rank refused
  std::optional<absl::Duration> stop_since;     // when the stop was told
  std::optional<absl::Duration> finish_since;   // when the last rank finished
  Replanning replanning;
  StragglerWatch stragglers;
  // Once the ranks have halted, the next generation has this plan and the workers of this one.
  std::optional<plan::Plan> next_plan;

  std::int64_t committed_steps() const { return steps.last_taken().value(); }
};

struct DecideOptions {
  absl::Duration admission_timeout = timeouts::kAdmissionTimeout;
  absl::Duration loading_timeout = timeouts::kLoadingTimeout;
  absl::Duration inputs_grace = timeouts::kInputsGrace;
  absl::Duration stop_grace = timeouts::kStopGrace;
  absl::Duration reports_grace = timeouts::kReportsGrace;
  // A job survives this many errors in a row (blame.h) without a new committed step between them,
  // and faults of any kind for give_up_after.
  int max_recoveries = 3;
  absl::Duration give_up_after = timeouts::kGiveUp;
  absl::Duration first_backoff = timeouts::kFirstBackoff;
  absl::Duration longest_backoff = timeouts::kLongestBackoff;
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

// Returns the newest step of which the job has a checkpoint, as far as is known: its own, or the
// one that a generation resumed from. 0: none. No generation resumes from an older one unless this
// one is damaged.
StepId SavedStep(const store::JobRecord& job);

// Returns the last step that is known to be committed; 0: none.
StepId CommittedStep(const store::JobRecord& job);

// job: STARTING, RUNNING or RECOVERING; `run` is its run. now: its wall time is that of the clock
// which gives faults their times (JobContext).
Decision Decide(Moment now, const store::JobRecord& job, const JobRun& run,
                const DecideOptions& options);

// Describes the fault for people: what went wrong first, where it was, and what every other rank
// was waiting for.
std::string DescribeFault(const store::JobRecord& job, const JobRun& run);

}  // namespace takt::job
