// SPDX-License-Identifier: Apache-2.0
// Decides who is to blame for a fault, and whether the job continues after it. All functions are
// pure.
//
// The order of guilt:
//   1. A worker that is gone without notice. It makes its neighbours fail.
//   2. A rank that reported an error of its own: it says that its worker is the cause
//      (control::Cause), or it refused inputs that not all ranks refuse. A rank that cannot tell
//      the cause comes after these, unless its error tells only that another rank is gone.
//   3. A rank that was stuck: it waited for nothing while another rank waited until its time was
//      over.
// A connection that broke between two living ranks is the link's fault: no worker is blamed. No
// worker is blamed either for an error of the job: one that its ranks ascribe to the job, inputs
// that all of them refuse, or a failed checkpoint of its last step.
//
// A worker that was asked to leave refuses its next rank. That counts as the loss of the worker,
// not as an error: all workers that leave say the same.
//
// A job goes on after a fault, on other workers where there are any, except that
//   - the same error at the same step on two workers is the job's own, so it fails at once;
//   - so does a job that has had max_recoveries errors and then another one without a new step;
//   - a job without a new step for give_up_after fails, whatever its faults were. Lost workers
//     count only here: a rack or a spot market may take many of them one after the other.
//
// An error that proves to be the job's own is no worker's any more: what was held against workers
// for it is forgiven. This is so if two workers had it at the same step, and also if a refusal that
// names a field of the job was the only error, as of a directory that no worker can make. Where
// only some ranks of a run refuse inputs, others have read them, so the workers stay blamed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job/decide.h"
#include "coordinator/store/record.h"

namespace takt::job {

// Returns the first rank whose worker is gone without notice, null if there is none.
const RankRun* FindSilentlyLost(const JobRun& run);

// Returns the rank that is guilty by the first two rules, null if there is none.
const RankRun* FindAtFault(const JobRun& run);

// True if the rank refused inputs that the job names and that other ranks check too.
bool RefusesInputs(const RankRun& rank);

struct Culprit {
  const RankRun* rank = nullptr;  // borrowed from the run; null: nobody
  std::string error;  // of its own, or of the job; empty: it is gone, leaves, or was stuck
  std::string what;   // for people
};

// run: its ranks have let go, or their time to do so is over.
Culprit FindGuilty(const JobRun& run);

// Returns the faults of the job since its last new step, with the one that ends `run`.
// now.wall: on the clock that gives faults their times (JobContext).
std::vector<store::JobFault> FaultsWith(const store::JobRecord& job, const JobRun& run, Moment now);

// Returns why the job is given up after these faults; nullopt: it goes on.
std::optional<std::string> WhyGivenUp(const std::vector<store::JobFault>& faults,
                                      const DecideOptions& options);

// True if the job, which is given up after these faults, had the error of `guilty` by itself.
// guilty: as FindGuilty returns it for the run that ended by the newest of them.
bool IsOfTheJob(const std::vector<store::JobFault>& faults, const Culprit& guilty,
                const DecideOptions& options);

// Returns the fields that the job must change, if it is given up for an error of its own that names
// them and has never done a step; else none. After a step its input was right once.
std::vector<FieldError> WrongFields(const std::vector<store::JobFault>& faults,
                                    const Culprit& guilty, const DecideOptions& options);

// Returns how long the job waits after so many faults.
absl::Duration BackoffAfter(std::size_t num_faults, const DecideOptions& options);

}  // namespace takt::job
