// SPDX-License-Identifier: Apache-2.0
// Trains a job on text in this process, on one rank, and scores what was held out.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "worker/train/trainer.h"

namespace takt::bench {

// Reads the job of deploy/examples/NAME, to run without checkpoints on one rank.
// Errors: kNotFound, kInvalidArgument.
absl::StatusOr<config::JobSpec> ExampleJob(const std::string& name, int threads);

struct LoneRankResult {
  double validation_loss = 0;  // after the last step
  double minutes = 0;
};

// job: has a validation. plan: of it, for one rank. data_root: of the job's paths. on_step: is
// called after each step, with what it left.
// Errors: those of its data and its training.
absl::StatusOr<LoneRankResult> TrainLoneRank(
    const config::JobSpec& job, const plan::Plan& plan, const std::string& data_root,
    const std::function<void(const train::Trainer& trainer, StepId step)>& on_step);

}  // namespace takt::bench
