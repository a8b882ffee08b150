// SPDX-License-Identifier: Apache-2.0
// Runs planned jobs for real: each rank is a process of this machine that does what a worker does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/trace/job_trace.h"

namespace takt::bench {

struct JobRun {
  // It has the steps that all ranks measured. The ranks share one clock.
  trace::JobTrace trace;
  std::vector<double> step_seconds;  // of each of these steps

  // Returns the times of the steps after the first `warmup_steps`.
  std::vector<double> SecondsAfter(std::int64_t warmup_steps) const;
};

// Runs the job to its last step. The job must neither save, nor resume, nor write curves.
// threads: of each rank. data_root: the folder of the job's token files.
// The calling process must have no other threads, because it forks.
// Errors: that of the first rank that fails; kInvalidArgument: no step was measured by all ranks.
absl::StatusOr<JobRun> RunJob(const config::JobSpec& job, const plan::Plan& plan, int threads,
                              const std::string& data_root);

}  // namespace takt::bench
