// SPDX-License-Identifier: Apache-2.0
// What the coordinator remembers: jobs, committed steps, answered requests, log lines. These are
// plain values: store.h keeps them, record_serde.h turns them into messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/config/job_spec.h"
#include "common/control/assignment.h"
#include "common/control/rank_status.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"

namespace takt::store {

// Numbers equal takt.v1.JobState and are stored.
enum class JobState : std::uint8_t {
  kQueued = 1,
  kPlanning = 2,
  kStarting = 3,
  kRunning = 4,
  kSucceeded = 5,
  kFailed = 6,
  kCancelled = 7,
  kRecovering = 8,
  kPaused = 9,
};

constexpr bool HasEnded(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

// "QUEUED", "PLANNING", ...
const char* Name(JobState state);

struct Transition {
  JobState state = JobState::kQueued;
  absl::Time time;
  std::string reason;
};

// A job lists so many. They are written with every change of the job.
inline constexpr std::size_t kMostTransitions = 256;

// One committed optimizer step.
struct StepRecord {
  std::string job_id;
  Generation generation;
  StepId step;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;
  double step_seconds = 0;
  std::vector<double> bubble_by_pp_rank;
  double bubble_fraction = 0;
  std::optional<double> validation_loss;
  std::optional<double> validation_bytes_per_token;  // of the set's text
  std::string schedule;
  absl::Time time;
  // Not stored: seconds of compute by rank; empty: a rank's part is missing.
  std::vector<double> busy_by_rank = {};
};

// The part of a plan that people and reports ask for. The plan itself can be made again.
struct PlanSummary {
  // What the job's workers compute on; kAuto: it has not had any.
  config::DeviceKind device = config::DeviceKind::kAuto;
  std::string schedule;
  mesh::Mesh mesh;
  mesh::Partition partition;
  mesh::VocabularyEnds vocabulary_ends;
  bool shares_optimizer = false;  // ranks with the same layers share its state
  double predicted_step_seconds = 0;
  double predicted_bubble_fraction = 0;
  std::vector<std::string> warnings;
  double model_flops = 0;                   // of a step; 0: the model is emulated
  double matmul_flops_per_second = 0;       // of all its workers together
  std::vector<MemoryBytes> memory;          // that a worker will need, by pp rank
  std::int64_t checkpoint_every_steps = 0;  // 0: none, or only at the end
  std::int64_t copy_every_steps = 0;        // copies of the state in memory; 0: none are kept
};

// The decision to end a generation. It is durable before the ranks have ended.
struct JobStop {
  // kFailed, kCancelled; kQueued or kRecovering: the job goes on under another generation.
  JobState state = JobState::kFailed;
  std::string reason;
  bool invalid_input = false;
  std::vector<FieldError> violations;  // of invalid_input
};

// The request that the generation ends at a step boundary.
struct JobHalt {
  JobState next = JobState::kPaused;  // or kQueued
  std::string reason;
  bool in_memory = false;  // as in control::Halt
};

// A checkpoint that is complete.
struct JobCheckpoint {
  StepId step;
  absl::Time time;
};

// A checkpoint that is not visible yet.
struct OpenCheckpoint {
  StepId step;
  std::vector<Rank> written;  // ranks that have reported their part
  std::vector<checkpoint::FileEntry> files;
  double snapshot_seconds = 0, write_seconds = 0;  // of the slowest rank
  std::string error;                               // the first that a rank reported
  // The worker that was asked to make it visible, and its process; empty: none was asked.
  std::string committer, committer_incarnation;
};

// The checkpoints of one generation that are being written.
struct Saving {
  std::vector<OpenCheckpoint> open;  // by step
  StepId settled;                    // the newest that is visible or failed
};

// A fault of a generation.
struct JobFault {
  absl::Time time;       // of the coordinator's WaitClock
  absl::Duration tried;  // since the fault before, as far as a coordinator was there
  std::string worker;    // that is to blame; empty: none is
  std::string error;     // of its rank, or of the job if none is to blame; empty: there was none
  StepId step;           // the last step that its rank had completed
  StepId committed;      // the last committed step of the job
  bool operator==(const JobFault&) const = default;
};

// The generation began under a coordinator whose state this one does not have.
struct JobAdoption {
  std::string cluster_id;  // of that coordinator; empty: not known
  StepId acknowledged;     // the reports of steps up to here do not come again
};

// The workers that keep copies of a job's state in memory while it waits for its next generation.
struct KeptCopies {
  std::set<std::string> workers;
  absl::Time since;  // the last generation ended; of the coordinator's WaitClock
  bool operator==(const KeptCopies&) const = default;
};

struct JobRecord {
  std::int64_t number = 0;  // order of submission, never reused
  std::string id;           // random, never reused
  std::string name;
  // takt.v1.JobSpec, serialized, as submitted. What is `auto` there and changes bits has the
  // numbers that the first plan chose, from then on.
  std::string spec;
  std::string owner;  // the caller that submitted it, "ROLE/NAME"; empty: it showed no certificate
  JobState state = JobState::kQueued;
  std::string reason;
  std::vector<Transition> transitions;     // in their order; see Enter
  std::int64_t forgotten_transitions = 0;  // that are not among them any more
  absl::Time create_time;
  std::optional<absl::Time> end_time;
  Generation generation;
  std::int64_t steps = 0;
  PlanSummary plan;
  std::vector<control::BoundRank> ranks;   // by rank; empty while no gang is held
  std::map<Rank, std::string> lost;        // those whose workers do not come back, and why
  std::vector<control::RankStatus> fault;  // by rank, of the newest fault
  bool invalid_input = false;
  std::vector<FieldError> violations;  // of invalid_input, where they are known
  std::optional<JobStop> stop;
  std::optional<JobHalt> halt;
  std::optional<JobCheckpoint> checkpoint;  // the newest of its own
  // The step of the checkpoint from which this generation went on, or the last one that went on
  // from a checkpoint; 0: the beginning.
  StepId resumed_step;
  StepId memory_step;  // of the copies in memory from which this one went on; 0: of none
  std::optional<KeptCopies> copies;  // until a generation trains; nullopt: none are kept
  std::string kernel_plan;           // takt.v1.Job
  Saving saving;
  std::vector<JobFault> faults;      // between which no new step was committed, the newest last
  std::vector<std::string> notices;  // warnings that are not the plan's
  // The next generation is not below this; 0: it is the one after the last.
  Generation next_generation;
  std::optional<JobAdoption> adoption;  // of this generation; nullopt: it was not adopted
  std::int64_t epoch_base = 0;  // is added to the coordinator's epoch where this job is concerned
  int planning_ends = 0;        // of coordinators in a row, each while it made this job's plan
  // From the step log, not stored with the job.
  std::optional<StepRecord> last_step;
  // Not stored: the share of a step that another plan is predicted to save. 0: none, or not known.
  double replan_gain = 0;
  // Not stored: how much longer the straggler computes than it should; 0: there is none.
  double straggler = 0;

  // Changes the state and lists that. Of more than kMostTransitions the oldest is forgotten, but
  // neither the first one nor the first RUNNING.
  void Enter(JobState to, absl::Time time, std::string why);
  std::int64_t num_transitions() const {
    return forgotten_transitions + static_cast<std::int64_t>(transitions.size());
  }
  // Returns the index of the first transition that came after the first `seen` of all, as far as
  // the list has it; its size if there is none.
  std::size_t FirstTransitionAfter(std::int64_t seen) const;
};

// How long the job still takes if each step takes as long as the last one, or, before the first
// step, as long as predicted.
double EtaSeconds(const JobRecord& job);

// A fault of a job for which a worker is blamed.
struct WorkerFault {
  absl::Time time;   // of the coordinator's WaitClock
  std::string job;   // its name
  std::string what;  // for people
  bool operator==(const WorkerFault&) const = default;
};

// Says what is held against a worker.
struct WorkerRecord {
  std::vector<WorkerFault> faults;  // of the last day, the newest last
  absl::Time quarantined_until = absl::InfinitePast();
  int quarantines = 0;  // in a row, without a day in which it was blamed for nothing
  bool operator==(const WorkerRecord&) const = default;
};

// A mutating request that was answered. `job` is what it was answered with.
struct RequestRecord {
  std::string method, request_id;
  std::optional<JobRecord> job;
};

struct LogRecord {
  std::int64_t number = 0;  // given by the store, ascending
  std::string job_id;
  std::string worker;
  Rank rank;
  StepId step;
  std::string level, text;
  std::int64_t unix_nanos = 0;
};

}  // namespace takt::store
