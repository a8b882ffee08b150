// SPDX-License-Identifier: Apache-2.0
// Tests plans whose replicas share the optimizer's state.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/plan/worker_programs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::Shard;
using config::SmallGpt2Job;
using ::testing::Contains;
using ::testing::HasSubstr;

config::JobSpec JobOf(int replicas, Shard shard, const std::string& schedule = "1f1b") {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = replicas, .schedule = schedule};
  job.parallelism.shard = shard;
  return job;
}

Plan PlanOf(const config::JobSpec& job, std::int64_t worker_memory_bytes = 0) {
  absl::StatusOr<Plan> plan =
      MakePlan(job, {.max_workers = 8, .worker_memory_bytes = worker_memory_bytes});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

std::int64_t MostBytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const MemoryBytes& rank : plan.memory) most = std::max(most, rank.total());
  return most;
}

TEST(SharedOptimizer, TakesLessMemoryAndUpdatesLess) {
  const Plan whole = PlanOf(JobOf(2, Shard::kNone));
  const Plan shared = PlanOf(JobOf(2, Shard::kOptimizer));
  EXPECT_FALSE(SharesOptimizer(whole));
  EXPECT_TRUE(SharesOptimizer(shared));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LT(shared.memory[rank][MemoryKind::kOptimizer],
              whole.memory[rank][MemoryKind::kOptimizer]);
    EXPECT_EQ(shared.memory[rank][MemoryKind::kWeights], whole.memory[rank][MemoryKind::kWeights]);
  }
}

// Each rank has eight layers in four stages.
config::JobSpec EmulatedJob(config::Reshard reshard) {
  config::JobSpec job = JobOf(4, Shard::kParameters, "interleaved-1f1b");
  job.model = {.family = model::Family::kEmulated,
               .layers = 16,
               .forward_seconds = 4e-3,
               .input_grad_seconds = 4e-3,
               .weight_grad_seconds = 4e-3,
               .activation_bytes = 4096,
               .parameter_bytes = 1 << 22};
  job.global_batch = 32;
  job.microbatch = 1;
  job.parallelism.chunks = 4;
  job.parallelism.reshard = reshard;
  return job;
}

// A rank has a quarter of its eight layers, and two of its four stages.
TEST(SharedWeights, TakeLessMemoryWhereTheyAreFreed) {
  const Plan whole = PlanOf(EmulatedJob(config::Reshard::kNever));
  const Plan freed = PlanOf(EmulatedJob(config::Reshard::kAlways));
  EXPECT_TRUE(SharesOptimizer(whole) && !FreesWeights(whole));
  EXPECT_TRUE(SharesOptimizer(freed) && FreesWeights(freed));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    MemoryBytes expected = whole.memory[rank];
    EXPECT_EQ(expected[MemoryKind::kWeights], 8 << 22);
    expected[MemoryKind::kWeights] = (8 << 22) / 4 + 2 * (2 << 22);
    EXPECT_EQ(freed.memory[rank], expected);
  }
}

TEST(SharedWeights, AreFreedOnlyIfAPlanDoesNotFitWithout) {
  const config::JobSpec job = EmulatedJob(config::Reshard::kAuto);
  EXPECT_FALSE(FreesWeights(PlanOf(job)));
  EXPECT_TRUE(FreesWeights(PlanOf(job, MostBytes(PlanOf(EmulatedJob(config::Reshard::kAlways))))));
}

TEST(SharedWeights, AreRefusedWhereNoneCouldBeFreed) {
  config::JobSpec job = EmulatedJob(config::Reshard::kAlways);
  job.parallelism.chunks = 2;
  const absl::Status status = MakePlan(job, {.max_workers = 8}).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("parallelism.reshard_after_forward is always: a rank has the weights of 2 "
                        "stages at a time"));
}

// A job that leaves it open whether weights are freed is not told off for a choice of the plan's.
TEST(SharedWeights, StayWholeWhereNoneCouldBeFreed) {
  config::JobSpec job = EmulatedJob(config::Reshard::kAuto);
  job.parallelism.chunks = 2;
  const Plan whole = PlanOf(job);
  EXPECT_FALSE(FreesWeights(whole));
  const absl::Status status =
      MakePlan(job, {.max_workers = 8, .worker_memory_bytes = MostBytes(whole) - 1}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs more memory than a worker has"));
}

TEST(SharedOptimizer, IsOfBothCopiesOfTheWeights) {
  EXPECT_TRUE(SharesOptimizer(PlanOf(JobOf(1, Shard::kOptimizer, "dualpipe"))));
}

TEST(SharedOptimizer, HasNoEffectOnOneReplicaOfOneCopy) {
  const Plan plan = PlanOf(JobOf(1, Shard::kOptimizer));
  EXPECT_FALSE(SharesOptimizer(plan));
  EXPECT_THAT(plan.warnings,
              Contains(HasSubstr("parallelism.shard: optimizer has no effect: no two ranks")));
}

// A job that says nothing shares before it computes more than it must.
TEST(SharedOptimizer, IsTheChoiceOfAPlanThatDoesNotFitWithout) {
  const config::JobSpec job = JobOf(2, Shard::kAuto);
  EXPECT_FALSE(SharesOptimizer(PlanOf(job)));
  const std::int64_t room = MostBytes(PlanOf(JobOf(2, Shard::kOptimizer)));
  ASSERT_LT(room, MostBytes(PlanOf(JobOf(2, Shard::kNone))));
  const Plan found = PlanOf(job, room);
  EXPECT_TRUE(SharesOptimizer(found));
  for (const mesh::Stage& stage : found.partition)
    EXPECT_EQ(stage.recompute, model::Recompute::kNone);
}

TEST(SharedOptimizer, IsTheChoiceOfAPlanForGpusThatDoesNotFitWithout) {
  const auto plan_of = [](Shard shard, std::int64_t room = 0) {
    return MakePlan(
               JobOf(2, shard),
               {.max_workers = 4, .device = config::DeviceKind::kCuda, .worker_memory_bytes = room})
        .value();
  };
  EXPECT_FALSE(SharesOptimizer(plan_of(Shard::kAuto)));
  std::int64_t room = 0;
  for (const MemoryBytes& rank : plan_of(Shard::kOptimizer).memory)
    room = std::max(room, CountedBytes(rank, config::DeviceKind::kCuda));
  EXPECT_TRUE(SharesOptimizer(plan_of(Shard::kAuto, room)));
}

// A job that asked for it would be refused, so a plan does not choose it.
TEST(SharedOptimizer, IsNoChoiceWhereReplicasCannotShare) {
  const auto most_bytes = [](config::JobSpec job, Shard shard) {
    job.parallelism.shard = shard;
    return MostBytes(PlanOf(job));
  };
  const std::int64_t room = most_bytes(JobOf(2, Shard::kAuto), Shard::kOptimizer);
  config::JobSpec muon = JobOf(2, Shard::kAuto), leaves = muon;
  muon.muon.emplace();
  leaves.parallelism.tensor_leaves = 2;
  for (const config::JobSpec& job : {muon, leaves}) {
    const absl::StatusOr<Plan> plan =
        MakePlan(job, {.max_workers = 8, .worker_memory_bytes = room});
    if (plan.ok()) {
      EXPECT_FALSE(SharesOptimizer(*plan));
    } else {
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("memory"));
    }
  }
}

TEST(SharedOptimizer, IsRefusedWhereAWorkersProgramDoesNotKnowIt) {
  const absl::Status status =
      MakePlan(JobOf(2, Shard::kOptimizer),
               {.max_workers = 4, .oldest_protocol = kAllFieldsProtocolVersion - 1})
          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("parallelism.shard: is not known to a worker"));
}

// Workers of the version before would not gather before the first step.
TEST(SharedOptimizer, NeedsNewerWorkersWhereMatricesInF32AreShards) {
  const PlanOptions old{.max_workers = 4, .oldest_protocol = kPackedShardsProtocolVersion - 1};
  config::JobSpec job = JobOf(2, Shard::kOptimizer);
  EXPECT_TRUE(MakePlan(job, old).ok());
  job.precision = config::Precision::kBf16;
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCpu), kPackedShardsProtocolVersion);
  EXPECT_THAT(std::string(MakePlan(job, old).status().message()),
              HasSubstr("parallelism.shard: is not known to a worker"));
  job.fp8 = model::Fp8Recipe::kTensor;
  EXPECT_LT(NeededProtocol(job, config::DeviceKind::kCpu), kPackedShardsProtocolVersion);
}

// The reader of job files refuses these families by name.
TEST(SharedOptimizer, IsNothingThatAScheduleWithoutAFlushHas) {
  config::JobSpec job = JobOf(2, Shard::kOptimizer, "pipedream-2bw");
  job.adamw.clip_norm = 0;
  EXPECT_FALSE(SharesOptimizer(PlanOf(job)));
}

}  // namespace
}  // namespace takt::plan
