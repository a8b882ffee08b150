// SPDX-License-Identifier: Apache-2.0
// Tests plans of schedules without a flush, whose gradients are late.
#include <string>

#include "common/base/version.h"
#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/plan/testing/plans.h"
#include "common/plan/worker_programs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::EmulatedJob;
using config::SmallGpt2Job;
using ::testing::HasSubstr;

config::JobSpec AsynchronousJob(const std::string& schedule) {
  config::JobSpec job = SmallGpt2Job();
  job.model.family = model::Family::kLlama;
  job.model.tied_head = false;
  job.adamw.clip_norm = 0;
  job.parallelism = {.pipeline = 2, .schedule = schedule};
  return job;
}

TEST(MakePlan, AsynchronousSchedulesRunWhenNamedAndSaySo) {
  for (const char* family : {"pipedream", "pipedream-2bw"}) {
    config::JobSpec job = AsynchronousJob(family);
    job.validation = config::Validation{.path = "v"};
    const absl::StatusOr<Plan> plan = MakePlan(job, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(program::IsAsynchronous(plan->programs[0]));
    EXPECT_FALSE(program::IsAsynchronous(plan->validation_programs[0]));
    EXPECT_TRUE(plan->validation_programs[0].prologue.empty());
    EXPECT_THAT(plan->warnings, ::testing::ElementsAre(HasSubstr("gradients at older weights")));
  }
}

// A step in the midst of many has no bubble: it takes M microbatches of F + B = 15 ms.
TEST(MakePlan, PredictsAStepAmongOthersWithoutAFlush) {
  config::JobSpec job = EmulatedJob(4, 8);
  job.parallelism = {.pipeline = 4, .schedule = "pipedream-2bw"};
  const Plan plan = *MakePlan(job, kFourWithFreeLinks);
  EXPECT_NEAR(plan.predicted_step_seconds, 8 * 15e-3, 1e-9);
  EXPECT_NEAR(plan.predicted_bubble_fraction, 0, 1e-9);
}

TEST(MakePlan, FeedsErrorsBackOnlyWhereGradientsAreOneStepLate) {
  config::JobSpec job = AsynchronousJob("pipedream-2bw");
  const std::int64_t bytes = MakePlan(job, {.max_workers = 4})->memory.back().total();
  job.error_feedback = 1;
  const absl::StatusOr<Plan> plan = MakePlan(job, {.max_workers = 4});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->memory.back().total(), bytes);
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCpu), kErrorFeedbackProtocolVersion);
  const PlanOptions old{.max_workers = 4, .oldest_protocol = kErrorFeedbackProtocolVersion - 1};
  EXPECT_EQ(MakePlan(job, old).status().message(),
            "optimizer.error_feedback: is not known to a worker, whose program is too old; upgrade "
            "takt-worker, or remove it");
  job.parallelism.schedule = "pipedream";
  EXPECT_EQ(ErrorOf(job),
            "optimizer.error_feedback is 1: must be 0 under pipedream, whose gradients are late by "
            "another time on each rank; remove it, or set parallelism.schedule: pipedream-2bw");
  job.parallelism.schedule = "1f1b";
  EXPECT_THAT(ErrorOf(job), HasSubstr("must be 0 under 1f1b, whose gradients are never late"));
  job.parallelism.schedule = "auto";
  EXPECT_EQ(
      ErrorOf(job),
      "optimizer.error_feedback is 1: must be 0 under parallelism.schedule: auto, which takes "
      "no schedule whose gradients are late; remove it, or set parallelism.schedule: "
      "pipedream-2bw");
}

TEST(MakePlan, RefusesWhatCannotBeDoneWithoutAFlush) {
  config::JobSpec job = AsynchronousJob("pipedream-2bw");
  job.parallelism.data = 2;
  job.model.tied_head = true;
  EXPECT_TRUE(MakePlan(job, {.max_workers = 4}).ok());
  job.adamw.clip_norm = 0.5;
  EXPECT_EQ(
      ErrorOf(job),
      "optimizer.adamw.clip_norm is 0.5: must be 0 under pipedream-2bw: weights change before "
      "the norm of all gradients is known; set it to 0, or use a schedule that flushes every "
      "step");
  job.parallelism.schedule = "pipedream";
  EXPECT_THAT(ErrorOf(job), HasSubstr("optimizer.adamw.clip_norm is 0.5"));
  job.sgd = config::Sgd{.clip_norm = 0.25};
  EXPECT_THAT(ErrorOf(job), HasSubstr("optimizer.sgd.clip_norm is 0.25"));
  job.sgd = std::nullopt;
  EXPECT_THAT(ErrorOf(job), HasSubstr("parallelism.data is 2: must be 1 under pipedream"));
  EXPECT_THAT(ErrorOf(job), HasSubstr("model.tied_head is true: must be false under pipedream"));
  job = AsynchronousJob("pipedream");
  job.model.family = model::Family::kMixtral;
  job.model.mixture = model::Mixture{
      .experts = 4, .chosen = 2, .inner = job.model.inner, .scores = model::RouterScores::kSigmoid};
  EXPECT_THAT(ErrorOf(job),
              HasSubstr("model.experts.scores is sigmoid: must be softmax under pipedream"));
  job.parallelism.schedule = "pipedream-2bw";
  EXPECT_TRUE(MakePlan(job, {.max_workers = 2}).ok());
  job = AsynchronousJob("pipedream");
  job.parallelism.pipeline = 4;
  job.global_batch = 6;
  EXPECT_THAT(ErrorOf(job), HasSubstr("batch.global is 6: makes 3 microbatches a step"));
}

}  // namespace
}  // namespace takt::plan
