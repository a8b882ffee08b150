// SPDX-License-Identifier: Apache-2.0
// Decides when a running job is planned again with what was measured since, and when it changes to
// the resulting plan. All functions are pure. job_replan.cc carries the decisions out.
//
//   a profile has changed --(kAsk)--> the planner predicts a step of the plan that the job has, and
//   makes the best plan for the same workers, by the same profile --> the gain, which metrics show
//   --(kSwitch: a checkpoint becomes visible)--> the run halts, and the next generation has that
//   plan
//
// An elastic job grows in the same way: when workers have been idle for a while, they are counted
// as its own, and it changes to a plan that needs some of them at the next step boundary. The while
// is ten times what a start takes, so that a job whose workers come and go spends little of its
// time on starts. Waiting jobs are served first (placement/queue.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/profile/profile.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct ReplanOptions {
  // A plan that saves a smaller share of a step is not worth an interruption.
  double least_gain = 0.1;
  // A job is planned again at most this often, and not before its generation has done so many
  // steps: the profile knows by then what its plan really takes.
  absl::Duration interval = timeouts::kReplan;
  std::int64_t least_steps = 20;
  // Workers must have been idle for so long, and for so many starts of the job, before it grows.
  absl::Duration grow_after = timeouts::kGrow;
  double grow_after_starts = 10;
};

// The planner's answer about a running job.
struct ReplanOffer {
  double present_seconds = 0;  // a step of the plan that the job has
  plan::Plan plan;             // the best one now, by the same profile

  // Returns the share of a step that the plan saves; 0: it saves nothing.
  double gain() const;
};

// What is known of the plan of one generation.
struct Replanning {
  // What plan::PredictStep reads of the plan. Null: the generation keeps it, unless it grows. That
  // is so after a restart of the coordinator, which stores no plans, and if another plan would
  // change the bits of the job's results.
  std::shared_ptr<const plan::Plan> present;
  std::shared_ptr<const profile::Profile> profile;  // that the planner was given last
  bool asked = false;                               // it has not answered yet
  absl::Duration since;  // steady; when the generation was handed out, or the last answer came
  std::optional<ReplanOffer> offer;  // the last answer, unless it is a failure
  StepId checkpoint;                 // the newest visible one when that came
  // Idle workers that the job could take, and since when (steady).
  std::map<std::string, absl::Duration> spare;
  std::set<std::string> asked_with;  // the spare workers that the planner counted last
};

// Returns what is known of a generation that is handed out now. Other plans have the same bits if
// the job is exact, the schedule flushes, and there is one copy of the weights.
Replanning ReplanningOf(const config::JobSpec& job, const plan::Plan& plan,
                        std::shared_ptr<const profile::Profile> profile, absl::Duration now);

struct ReplanFacts {
  bool trains = false;                          // all ranks run, and nobody told them to end
  bool asked = false;                           // the planner has not answered yet
  bool new_profile = false;                     // something was measured since it was asked
  absl::Duration waited;                        // since Replanning::since
  std::int64_t steps_done = 0, steps_left = 0;  // of this generation, of the job
  const ReplanOffer* offer = nullptr;
  // The job wants a better plan, and a checkpoint has become visible since the offer came.
  bool may_switch = false;
  absl::Duration start_time;  // how long this generation took from its plan to its first step
  int num_ranks = 1;          // that the job has
  int num_spare = 0;          // idle workers that it could take, for long enough
  bool new_spare = false;     // these are not the ones that the planner counted last
};

struct ReplanDecision {
  enum class Kind : std::uint8_t { kNone, kAsk, kSwitch };
  Kind kind = Kind::kNone;
  std::string reason;  // of kSwitch, for people
};

// Returns for how long a worker must have been idle before a job takes it to grow.
absl::Duration GrowAfter(absl::Duration start_time, const ReplanOptions& options);

ReplanDecision DecideReplan(const ReplanFacts& facts, const ReplanOptions& options);

}  // namespace takt::job
