// SPDX-License-Identifier: Apache-2.0
// Tests plans whose steps have no barrier.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/testing/jobs.h"
#include "common/model/vocabulary.h"
#include "common/plan/plan.h"
#include "common/plan/worker_programs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::Barrier;
using config::EmulatedJob;
using config::SmallGpt2Job;
using ::testing::HasSubstr;

const PlanOptions kFreeLinks{
    .max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};

config::JobSpec EmulatedJobWith(const std::string& schedule, Barrier barrier) {
  config::JobSpec job = EmulatedJob(4, 8);
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = schedule;
  job.barrier = barrier;
  return job;
}

std::string ErrorOf(const config::JobSpec& job, const PlanOptions& options) {
  return std::string(MakePlan(job, options).status().message());
}

// F, I and W take 5 ms each. Ranks that are idle only because steps end together lose 3 units less.
TEST(Barrier, CostsWhatRanksAreIdleOutsideTheirSpans) {
  const Plan with = *MakePlan(EmulatedJobWith("zb-h2", Barrier::kAlways), kFreeLinks);
  const Plan without = *MakePlan(EmulatedJobWith("zb-h2", Barrier::kNever), kFreeLinks);
  EXPECT_FALSE(OverlapsSteps(with));
  EXPECT_TRUE(OverlapsSteps(without));
  EXPECT_NEAR(with.predicted_step_seconds, 27 * 5e-3, 1e-9);
  EXPECT_NEAR(without.predicted_step_seconds, 24 * 5e-3, 1e-9);
  EXPECT_NEAR(without.predicted_bubble_fraction, 0, 1e-9);
}

TEST(Barrier, PredictsTheStepAgainAsItIs) {
  const config::JobSpec job = EmulatedJobWith("zb-h2", Barrier::kNever);
  const Plan plan = *MakePlan(job, kFreeLinks);
  EXPECT_NEAR(*PredictStep(job, kFreeLinks, plan), plan.predicted_step_seconds, 1e-9);
}

TEST(Barrier, StaysOutOfValidations) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .schedule = "1f1b"};
  job.barrier = Barrier::kNever;
  job.validation = config::Validation{.path = "v", .every_steps = 1};
  const Plan plan = *MakePlan(job, {.max_workers = 2});
  EXPECT_TRUE(OverlapsSteps(plan));
  EXPECT_FALSE(program::OverlapsSteps(plan.validation_programs[0]));
  EXPECT_TRUE(plan.validation_programs[0].prologue.empty());
}

TEST(Barrier, IsRefusedByNameWhereItIsNeeded) {
  EXPECT_THAT(ErrorOf(EmulatedJobWith("dualpipe", Barrier::kNever), kFreeLinks),
              HasSubstr("optimizer.barrier is false: cannot be under dualpipe: a program of pp "
                        "rank 0 has two copies of the weights"));
  EXPECT_THAT(ErrorOf(EmulatedJobWith("pipedream-2bw", Barrier::kNever), kFreeLinks),
              HasSubstr("has no flush"));
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 2, .schedule = "1f1b"};
  job.parallelism.shard = config::Shard::kParameters;
  job.parallelism.reshard = config::Reshard::kAlways;
  job.parallelism.schedule = "interleaved-1f1b";
  job.parallelism.chunks = 3;
  job.model.layers = 6;
  job.barrier = Barrier::kNever;
  EXPECT_THAT(ErrorOf(job, {.max_workers = 4}), HasSubstr("frees weights"));
}

TEST(Barrier, GoesWhereReplicasShareTheOptimizersStateUnlessAWorkersProgramIsTooOld) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 2, .schedule = "1f1b"};
  job.parallelism.shard = config::Shard::kOptimizer;
  job.barrier = Barrier::kNever;
  const Plan plan = *MakePlan(job, {.max_workers = 4});
  EXPECT_TRUE(OverlapsSteps(plan));
  EXPECT_TRUE(program::ShardsOptimizer(plan.programs[0]));
  const PlanOptions old{.max_workers = 4, .oldest_protocol = kForeseenShardsProtocolVersion - 1};
  EXPECT_THAT(ErrorOf(job, old), HasSubstr("optimizer.barrier: is not known to a worker"));
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCpu), kForeseenShardsProtocolVersion);
}

config::JobSpec SpreadJob() {
  config::JobSpec job = SmallGpt2Job();
  job.model.hidden = 1024;  // so that blocks take most of the time
  job.model.inner = 4096;
  job.model.vocab = 4 * model::kVocabularyBlock;
  job.parallelism = {.pipeline = 4, .schedule = "zb-h2"};
  job.parallelism.vocabulary = config::Vocabulary::kSpread;
  job.global_batch = 16;
  job.microbatch = 1;
  job.model.layers = 8;
  job.barrier = Barrier::kNever;
  return job;
}

TEST(Barrier, GoesWhereTheVocabularyIsSpreadUnlessAWorkersProgramIsTooOld) {
  config::JobSpec job = SpreadJob();
  const Plan plan = *MakePlan(job, kFreeLinks);
  EXPECT_TRUE(OverlapsSteps(plan));
  EXPECT_TRUE(plan.schedule.spreads_vocabulary);
  EXPECT_NEAR(*PredictStep(job, kFreeLinks, plan), plan.predicted_step_seconds, 1e-9);
  job.barrier = Barrier::kAlways;
  const Plan with = *MakePlan(job, kFreeLinks);
  EXPECT_LT(plan.predicted_step_seconds, 0.97 * with.predicted_step_seconds);
  std::int64_t rows = 0;  // of which there are foreseen ones besides
  for (std::size_t rank = 0; rank < plan.memory.size(); ++rank)
    rows += plan.memory[rank][MemoryKind::kWeights] - with.memory[rank][MemoryKind::kWeights];
  EXPECT_GE(rows, job.model.vocab * job.model.hidden * std::int64_t{sizeof(float)});

  job.barrier = Barrier::kNever;
  PlanOptions old = kFreeLinks;
  old.oldest_protocol = kForeseenRowsProtocolVersion - 1;
  EXPECT_THAT(ErrorOf(job, old), HasSubstr("optimizer.barrier: is not known to a worker"));
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCpu), kForeseenRowsProtocolVersion);
  job.parallelism.vocabulary = config::Vocabulary::kAuto;
  EXPECT_FALSE(MakePlan(job, old)->schedule.spreads_vocabulary);
}

TEST(Barrier, GoesByAutoWhereTheVocabularyIsSpread) {
  config::JobSpec job = SpreadJob();
  job.barrier = Barrier::kAuto;
  EXPECT_FALSE(OverlapsSteps(*MakePlan(job, kFreeLinks)));
  job.adamw.clip_norm = 0;
  EXPECT_TRUE(OverlapsSteps(*MakePlan(job, kFreeLinks)));
  PlanOptions old = kFreeLinks;
  old.oldest_protocol = kForeseenRowsProtocolVersion - 1;
  EXPECT_FALSE(OverlapsSteps(*MakePlan(job, old)));
}

// What a plan cannot choose without a barrier it leaves out, and tries what comes next.
TEST(Barrier, IsNoReasonToRefuseAJobThatNeedsMemory) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 2, .schedule = "1f1b"};
  job.barrier = Barrier::kNever;
  PlanOptions options{.max_workers = 4, .oldest_protocol = kForeseenShardsProtocolVersion - 1};
  const auto bytes = [&] {
    const Plan plan = *MakePlan(job, options);
    std::int64_t most = 0;
    for (const MemoryBytes& rank : plan.memory) most = std::max(most, rank.total());
    return most;
  };
  options.worker_memory_bytes = bytes() - 1;
  const absl::StatusOr<Plan> recomputes = MakePlan(job, options);
  ASSERT_TRUE(recomputes.ok()) << recomputes.status();
  EXPECT_FALSE(program::ShardsOptimizer(recomputes->programs[0]));
  options.oldest_protocol = kForeseenShardsProtocolVersion;
  EXPECT_TRUE(program::ShardsOptimizer(MakePlan(job, options)->programs[0]));
  options = {.max_workers = 4};
  job.parallelism.shard = config::Shard::kParameters;
  job.parallelism.schedule = "interleaved-1f1b";
  job.parallelism.chunks = 3;
  job.model.layers = 6;
  options.worker_memory_bytes = bytes() - 1;
  const absl::StatusOr<Plan> whole = MakePlan(job, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(program::FreesWeights(whole->programs[0]));
}

TEST(Barrier, StaysIfAWorkersProgramIsTooOld) {
  PlanOptions old = kFreeLinks;
  old.oldest_protocol = kAllFieldsProtocolVersion - 1;
  EXPECT_THAT(ErrorOf(EmulatedJobWith("zb-h2", Barrier::kNever), old),
              HasSubstr("optimizer.barrier: is not known to a worker"));
}

TEST(Barrier, IsKeptByAutoUntilStepsAreKnownToBeRarelyClipped) {
  const config::JobSpec job = EmulatedJobWith("zb-h2", Barrier::kAuto);
  PlanOptions options = kFreeLinks;
  EXPECT_FALSE(OverlapsSteps(*MakePlan(job, options)));
  options.clipped_share = 0.5;
  EXPECT_FALSE(OverlapsSteps(*MakePlan(job, options)));
  options.clipped_share = 0.02;
  const Plan plan = *MakePlan(job, options);
  EXPECT_TRUE(OverlapsSteps(plan));
  EXPECT_NEAR(plan.predicted_step_seconds, 24 * 5e-3, 1e-9);
  options.oldest_protocol = kAllFieldsProtocolVersion - 1;
  EXPECT_FALSE(OverlapsSteps(*MakePlan(job, options)));
}

TEST(Barrier, IsKeptByAutoWhereItCostsNothing) {
  for (const char* schedule : {"1f1b", "gpipe", "dualpipe", "pipedream"}) {
    config::JobSpec job = EmulatedJobWith(schedule, Barrier::kAuto);
    job.adamw.clip_norm = 0;
    EXPECT_FALSE(OverlapsSteps(*MakePlan(job, kFreeLinks))) << schedule;
  }
}

// The gathers of this job take next to nothing.
TEST(Barrier, GoesByAutoWhereReplicasShareTheOptimizersState) {
  config::JobSpec job = EmulatedJobWith("zb-h2", Barrier::kAuto);
  job.adamw.clip_norm = 0;
  job.model.parameter_bytes = 1024;
  job.parallelism.data = 2;
  job.parallelism.shard = config::Shard::kOptimizer;
  job.global_batch *= 2;
  const Plan plan = *MakePlan(job, kFreeLinks);
  EXPECT_TRUE(OverlapsSteps(plan));
  EXPECT_TRUE(program::ShardsOptimizer(plan.programs[0]));
}

// Of all schedules those are compared that gain by it, too.
TEST(Barrier, GoesWhereTheJobClipsNothingAndChoosesNoSchedule) {
  config::JobSpec job = EmulatedJobWith("auto", Barrier::kAuto);
  job.adamw.clip_norm = 0;
  const Plan plan = *MakePlan(job, kFreeLinks);
  EXPECT_TRUE(OverlapsSteps(plan)) << plan.schedule.name;
  EXPECT_LE(plan.predicted_step_seconds, 24 * 5e-3 + 1e-9);
  job.barrier = Barrier::kAlways;
  EXPECT_GT(MakePlan(job, kFreeLinks)->predicted_step_seconds, 24.5 * 5e-3);
}

}  // namespace
}  // namespace takt::plan
