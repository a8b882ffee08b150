// SPDX-License-Identifier: Apache-2.0
#include "common/plan/ways.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::EmulatedJob;
using config::SmallGpt2Job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A job of 16 sequences a step that leaves open how they are divided.
config::JobSpec OpenJob() {
  config::JobSpec job = SmallGpt2Job();
  job.microbatch = 1;
  job.microbatch_auto = job.parallelism.data_auto = true;
  return job;
}

// Each instruction takes 10 ms more than its layers, so that few large microbatches are fastest.
PlanOptions SlowToDispatch(int max_workers) {
  auto profile = std::make_shared<profile::Profile>();
  profile->AddRank({.machine = "m"}, {.dispatch_seconds = 1e-2});
  PlanOptions options{.max_workers = max_workers, .host = {.machine = "m", .workers = max_workers}};
  options.profile = profile;
  return options;
}

std::set<std::pair<int, int>> DivisionsOf(const config::JobSpec& job, int max_workers) {
  const PlanOptions options{.max_workers = max_workers};
  std::set<std::pair<int, int>> divisions;  // data, microbatch
  const JobInputs inputs = JobInputs::Create(job, options).value();
  for (const Division& each : inputs.divisions()) divisions.emplace(each.data, each.microbatch);
  return divisions;
}

TEST(JobInputs, DivideTheBatchAsTheJobSaysUnlessItSaysAuto) {
  config::JobSpec job = SmallGpt2Job();
  EXPECT_THAT(DivisionsOf(job, 4), ElementsAre(std::pair(1, 2)));
  job.parallelism.data = 8;  // more than there are workers: it waits
  EXPECT_THAT(DivisionsOf(job, 4), ElementsAre(std::pair(8, 2)));
}

TEST(JobInputs, DivideTheBatchOverAsManyReplicasAsThereAreWorkers) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.data_auto = true;
  EXPECT_THAT(DivisionsOf(job, 7), ElementsAre(std::pair(1, 2), std::pair(2, 2), std::pair(4, 2)));
  job.parallelism.pipeline = 3;
  EXPECT_THAT(DivisionsOf(job, 7), ElementsAre(std::pair(1, 2), std::pair(2, 2)));
  EXPECT_THAT(DivisionsOf(job, 2), ElementsAre(std::pair(1, 2)));
  EXPECT_THAT(DivisionsOf(OpenJob(), 4), SizeIs(5 + 4 + 3));
}

TEST(JobInputs, OfAnElasticJobHaveReplicasInItsRangeThatDivideTheBatch) {
  config::JobSpec job = SmallGpt2Job();  // eight microbatches
  job.elastic.data = config::SizeRange{.min = 2, .max = 7};
  EXPECT_THAT(DivisionsOf(job, 9), ElementsAre(std::pair(2, 2), std::pair(4, 2)));
  EXPECT_THAT(DivisionsOf(job, 3), ElementsAre(std::pair(2, 2)));
  EXPECT_THAT(DivisionsOf(job, 1), ElementsAre(std::pair(2, 2))) << "it waits";
  job.elastic.pipeline = config::SizeRange{.min = 3, .max = 5};
  EXPECT_THAT(DivisionsOf(job, 9), ElementsAre(std::pair(2, 2)));
  job.parallelism.data = 4;
  EXPECT_THAT(DivisionsOf(job, 9), ElementsAre(std::pair(4, 2))) << "it begins with that";
}

TEST(JobInputs, AScheduleThatUpdatesAfterEachBackwardKeepsItsReplicas) {
  config::JobSpec job = SmallGpt2Job();
  job.elastic.data = config::SizeRange{.min = 1, .max = 2};
  job.parallelism.schedule = "pipedream";
  const PlanOptions options{};
  EXPECT_THAT(std::string(JobInputs::Create(job, options).status().message()),
              HasSubstr("elastic.data is 1 to 2: cannot be changed under pipedream"));
}

TEST(Ways, OfAnElasticJobHavePipelinesInItsRange) {
  config::JobSpec job = SmallGpt2Job();
  job.elastic.pipeline = config::SizeRange{.min = 2, .max = 3};
  const auto sizes_of = [&](int max_workers) {
    const PlanOptions options{.max_workers = max_workers};
    JobInputs inputs = JobInputs::Create(job, options).value();
    std::set<int> sizes;
    for (const Way& way : WaysOf(inputs)) sizes.insert(way.pp_size);
    return sizes;
  };
  EXPECT_THAT(sizes_of(8), ElementsAre(2, 3));
  EXPECT_THAT(sizes_of(2), ElementsAre(2));
  EXPECT_THAT(sizes_of(1), ElementsAre(2)) << "it waits";
}

TEST(JobInputs, LeaveOutWhatHasTooManyMicrobatches) {
  config::JobSpec job = OpenJob();
  job.parallelism.data_auto = false;
  job.global_batch = 1 << 16;  // of ten layers at most 26214
  EXPECT_EQ(DivisionsOf(job, 1).begin()->second, 4);
  job.microbatch_auto = false;
  const PlanOptions options{};
  EXPECT_THAT(std::string(JobInputs::Create(job, options).status().message()),
              HasSubstr("batch.microbatch is 1: makes 65536 microbatches a step"));
}

TEST(JobInputs, HaveAModelForEachMicrobatch) {
  const config::JobSpec job = OpenJob();
  const PlanOptions options{.max_workers = 4};
  JobInputs inputs = JobInputs::Create(job, options).value();
  const CandidateInputs small = inputs.Of(Division{.data = 2, .microbatch = 1});
  const CandidateInputs large = inputs.Of(Division{.data = 1, .microbatch = 8});
  EXPECT_EQ(small.dp_size, 2);
  EXPECT_EQ(small.model.microbatch, 1);
  EXPECT_EQ(large.model.microbatch, 8);
  EXPECT_EQ(&inputs.Of(Division{.data = 4, .microbatch = 8}).model, &large.model);
}

TEST(Ways, AreBoundedInNumber) {
  config::JobSpec job = OpenJob();
  job.global_batch = 7'207'200;  // it has 432 divisors
  const PlanOptions options{.max_workers = 4096};
  JobInputs inputs = JobInputs::Create(job, options).value();
  EXPECT_LE(WaysOf(inputs).size(), 256u);
}

TEST(Ways, NoScheduleTakesLessThanTheBound) {
  const config::JobSpec job = OpenJob();
  const PlanOptions options{.max_workers = 4};
  JobInputs inputs = JobInputs::Create(job, options).value();
  int plans = 0;
  for (const Way& way : WaysOf(inputs)) {
    for (const char* schedule : {"gpipe", "1f1b", "zb-h2", "zb-v"}) {
      config::JobSpec named = job;
      named.FixBits(way.division.data, way.division.microbatch);
      named.parallelism.pipeline = way.pp_size;
      named.parallelism.schedule = schedule;
      const absl::StatusOr<Plan> plan = MakePlan(named, options);
      if (!plan.ok()) continue;
      ++plans;
      EXPECT_GE(plan->predicted_step_seconds, way.least_seconds * (1 - 1e-9)) << ToString(*plan);
    }
  }
  EXPECT_GT(plans, 50);
}

// On four workers, four replicas have no bubble.
TEST(MakePlan, ChoosesReplicasWhereTheJobSaysAuto) {
  const PlanOptions options{
      .max_workers = 4, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  config::JobSpec job = EmulatedJob(4, 8);
  EXPECT_EQ(MakePlan(job, options)->mesh.dp_size, 1);
  job.parallelism.data_auto = true;
  const Plan plan = *MakePlan(job, options);
  EXPECT_EQ(plan.mesh.dp_size, 4);
  EXPECT_EQ(plan.mesh.pp_size, 1);
  EXPECT_NEAR(plan.predicted_step_seconds, 2 * 4 * 15e-3, 1e-9);
  job.parallelism.pipeline = 2;
  EXPECT_EQ(MakePlan(job, options)->mesh.dp_size, 2);
  job.parallelism.pipeline = 3;
  EXPECT_EQ(MakePlan(job, options)->mesh.dp_size, 1);
}

TEST(MakePlan, TakesNoReplicasWhoseSumsCostMoreThanTheySave) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 1, .data_auto = true};
  PlanOptions options{.max_workers = 4, .link_seconds_per_byte = 0};
  EXPECT_EQ(MakePlan(job, options)->mesh.dp_size, 4);
  options.link_seconds_per_byte = 1e-3;
  EXPECT_EQ(MakePlan(job, options)->mesh.size(), 1);
}

// If only layers take time, microbatches of all sizes take as long, and the smallest hold least.
TEST(MakePlan, ChoosesTheSizeOfMicrobatchesWhereTheJobSaysAuto) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 1, .schedule = "1f1b"};
  EXPECT_EQ(MakePlan(job, {.max_workers = 1})->microbatch, 2);
  job.microbatch = 1;
  job.microbatch_auto = true;
  EXPECT_EQ(MakePlan(job, {.max_workers = 1})->microbatch, 1);
  const Plan plan = *MakePlan(job, SlowToDispatch(1));
  EXPECT_EQ(plan.microbatch, 16);
  EXPECT_EQ(plan.model.microbatch, 16);
  EXPECT_EQ(plan.schedule.num_microbatches, 1);
}

TEST(MakePlan, ChoosesMicrobatchesThatFitTheWorkers) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 1, .schedule = "1f1b", .recompute = {model::Recompute::kNone}};
  PlanOptions options = SlowToDispatch(1);
  const auto bytes = [&](int microbatch) {
    config::JobSpec named = job;
    named.microbatch = microbatch;
    named.microbatch_auto = false;
    return MakePlan(named, SlowToDispatch(1))->memory[0].total();
  };
  job.microbatch_auto = true;
  job.microbatch = 1;
  options.worker_memory_bytes = bytes(4);
  EXPECT_EQ(MakePlan(job, options)->microbatch, 4);
  // The fastest sizes, more than a plan tries, are all too large.
  job.global_batch = 4096;
  options.worker_memory_bytes = bytes(1);
  EXPECT_EQ(MakePlan(job, options)->microbatch, 1);
}

TEST(MakePlan, ChoosesNoMicrobatchesThatAreUpdates) {
  config::JobSpec job = OpenJob();
  job.model.family = model::Family::kLlama;
  job.model.tied_head = false;
  job.adamw.clip_norm = 0;
  job.parallelism.schedule = "pipedream";
  job.parallelism.pipeline = 2;
  EXPECT_EQ(std::string(MakePlan(job, {.max_workers = 4}).status().message()),
            "batch.microbatch is auto: must be a number under pipedream: each microbatch is an "
            "update of its own; name it, or use a schedule that flushes every step");
  job.microbatch_auto = false;
  const absl::StatusOr<Plan> plan = MakePlan(job, {.max_workers = 4});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->mesh.dp_size, 1);
}

TEST(MakeForecasts, CompareDivisionsOfTheBatch) {
  config::JobSpec job = OpenJob();
  job.parallelism.schedule = "1f1b";
  const PlanOptions options = SlowToDispatch(2);
  const Plan plan = *MakePlan(job, options);
  const Forecasts forecasts = *MakeForecasts(job, options, 50);
  ASSERT_FALSE(forecasts.candidates.empty());
  EXPECT_EQ(forecasts.candidates[0].plan.mesh.size(), plan.mesh.size());
  EXPECT_EQ(forecasts.candidates[0].plan.mesh.dp_size, plan.mesh.dp_size);
  EXPECT_EQ(forecasts.candidates[0].plan.microbatch, plan.microbatch);
  std::set<std::pair<int, int>> divisions;
  for (const Forecast& forecast : forecasts.candidates) {
    const Plan& of = forecast.plan;
    divisions.emplace(of.mesh.dp_size, of.microbatch);
    EXPECT_EQ(of.model.microbatch, of.microbatch);
    EXPECT_EQ(of.mesh.dp_size * of.microbatch * of.schedule.num_microbatches, 16);
    const Parts& parts = forecast.parts;
    const double sum = parts.compute + parts.imbalance + parts.communication + parts.sync;
    EXPECT_NEAR(sum + parts.schedule, of.predicted_step_seconds, 1e-12);
  }
  EXPECT_GT(divisions.size(), 1u);
}

TEST(MakeForecasts, SayOfWhichDivisionTheyLeaveAScheduleOut) {
  config::JobSpec job = OpenJob();
  job.parallelism.pipeline = 1;
  const Forecasts forecasts = *MakeForecasts(job, {.max_workers = 1}, 1);
  std::set<int> sizes;
  for (const Refusal& refusal : forecasts.refused) {
    EXPECT_EQ(refusal.mesh.dp_size, 1);
    sizes.insert(refusal.microbatch);
  }
  EXPECT_GT(sizes.size(), 1u);
}

}  // namespace
}  // namespace takt::plan
