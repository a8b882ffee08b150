// SPDX-License-Identifier: Apache-2.0
// Plans of jobs whose ranks share sequences.
#include <cstddef>
#include <string>

#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/program/part_lists.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using ::testing::HasSubstr;

config::JobSpec SharedJob(int context) {
  config::JobSpec job = config::SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 1, .schedule = "1f1b", .context = context};
  return job;
}

TEST(PlanWithContext, TakesAsManyWorkersAsItsMeshHasRanks) {
  const Plan plan = MakePlan(SharedJob(4), {.max_workers = 8}).value();
  EXPECT_EQ(mesh::ToString(plan.mesh), "2 x 1 x context 4");
  config::JobSpec open = SharedJob(4);
  open.parallelism.pipeline.reset();
  EXPECT_EQ(MakePlan(open, {.max_workers = 7})->mesh.pp_size, 1);
}

// Messages, tokens and what is kept of a microbatch are those of a rank's tokens; weights are
// whole.
TEST(PlanWithContext, HoldsTheTokensOfARank) {
  const Plan whole = MakePlan(SharedJob(1), {.max_workers = 8}).value();
  const Plan shared = MakePlan(SharedJob(2), {.max_workers = 8}).value();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LT(shared.memory[rank][MemoryKind::kStash], whole.memory[rank][MemoryKind::kStash]);
    EXPECT_LT(shared.memory[rank][MemoryKind::kMessages],
              whole.memory[rank][MemoryKind::kMessages]);
    EXPECT_EQ(shared.memory[rank][MemoryKind::kWeights], whole.memory[rank][MemoryKind::kWeights]);
  }
}

TEST(PlanWithContext, MeetsInsideAttentionAndSumsGradients) {
  PlanOptions options{.max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  const config::JobSpec job = SharedJob(2);
  const Plan fast = MakePlan(job, options).value();
  for (const program::Program& program : fast.programs) {
    EXPECT_GT(program::NumMeetings(program), 0U);
    bool sums = false;
    for (const program::Instruction& each : program.body)
      sums |= each.op == program::Op::kReduceGrad;
    EXPECT_TRUE(sums);
  }
  EXPECT_EQ(fast.costs.context.front().size, 2);
  options.link_latency_seconds = 1e-3;
  const Plan slow = MakePlan(job, options).value();
  // One microbatch meets once in F of each block and twice in B.
  const double meetings = 3e-3 * job.model.layers / 2;
  EXPECT_GT(slow.predicted_step_seconds, fast.predicted_step_seconds + meetings);
}

TEST(PlanWithContext, SharesTheOptimizersStateAmongContextRanks) {
  config::JobSpec job = SharedJob(2);
  job.parallelism.shard = config::Shard::kNone;
  const Plan none = MakePlan(job, {.max_workers = 8}).value();
  job.parallelism.shard = config::Shard::kOptimizer;
  const Plan shared = MakePlan(job, {.max_workers = 8}).value();
  EXPECT_TRUE(SharesOptimizer(shared));
  EXPECT_LT(shared.memory[0][MemoryKind::kOptimizer], none.memory[0][MemoryKind::kOptimizer]);
}

TEST(PlanWithContext, IsRefusedWhereWorkersCannotRunIt) {
  const auto error = [](const config::JobSpec& job, const PlanOptions& options) {
    return std::string(MakePlan(job, options).status().message());
  };
  const PlanOptions options{.max_workers = 8};
  config::JobSpec delayed = SharedJob(2);
  delayed.parallelism.schedule = "pipedream-2bw";
  delayed.adamw.clip_norm = 0;
  EXPECT_THAT(error(delayed, options), HasSubstr("parallelism.context is 2: must be 1 under"));
  config::JobSpec copies = SharedJob(2);
  copies.parallelism.schedule = "dualpipe";
  EXPECT_THAT(error(copies, options), HasSubstr("two copies of the weights"));
  config::JobSpec spread = SharedJob(2);
  spread.parallelism.vocabulary = config::Vocabulary::kSpread;
  EXPECT_THAT(error(spread, options), HasSubstr("cannot be spread over pp ranks"));
  EXPECT_THAT(error(SharedJob(2), {.max_workers = 8, .device = config::DeviceKind::kCuda}),
              HasSubstr("on CPUs only"));
  EXPECT_THAT(
      error(SharedJob(2), {.max_workers = 8, .oldest_protocol = kAllFieldsProtocolVersion - 1}),
      HasSubstr("parallelism.context"));
}

TEST(PlanWithContext, IsRefusedWhereAWorkersProgramMeetsInAnotherOrder) {
  EXPECT_THAT(std::string(MakePlan(SharedJob(2), {.max_workers = 8,
                                                  .oldest_protocol = kAllWaysProtocolVersion - 1})
                              .status()
                              .message()),
              HasSubstr("parallelism.context: is not known to a worker"));
}

}  // namespace
}  // namespace takt::plan
