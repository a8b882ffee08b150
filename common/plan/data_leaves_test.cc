// SPDX-License-Identifier: Apache-2.0
// Tests plans whose replicas have several leaves each.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/version.h"
#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/plan/traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::SmallGpt2Job;
using program::Op;
using ::testing::HasSubstr;

config::JobSpec JobOf(int replicas, int leaves, const std::string& schedule = "1f1b") {
  config::JobSpec job = SmallGpt2Job();
  job.global_batch = 8 * job.microbatch;
  job.parallelism = {.pipeline = 2, .data = replicas, .schedule = schedule};
  job.parallelism.data_leaves = leaves;
  return job;
}

Plan PlanOf(const config::JobSpec& job, int max_workers = 8) {
  absl::StatusOr<Plan> plan = MakePlan(job, {.max_workers = max_workers});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

std::string Refusal(const config::JobSpec& job, const PlanOptions& options = {.max_workers = 8}) {
  return std::string(MakePlan(job, options).status().message());
}

bool Sums(const Plan& plan) {
  return std::ranges::any_of(plan.programs[0].body, [](const program::Instruction& each) {
    return each.op == Op::kReduceGrad;
  });
}

TEST(DataLeaves, EachTermHasABucketOfGradients) {
  const Plan none = PlanOf(JobOf(1, 0)), one = PlanOf(JobOf(4, 4)), four = PlanOf(JobOf(1, 4));
  EXPECT_FALSE(Sums(none));
  EXPECT_TRUE(Sums(four)) << "of the only replica's leaves";
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::int64_t bucket = none.memory[rank][MemoryKind::kGradients];
    EXPECT_EQ(one.memory[rank][MemoryKind::kGradients], bucket);
    const std::int64_t all = four.memory[rank][MemoryKind::kGradients];
    EXPECT_GE(all, 4 * bucket - bucket / 8) << "rounding of allocations apart";
    EXPECT_LE(all, 4 * bucket + bucket / 8);
    EXPECT_EQ(four.memory[rank][MemoryKind::kOptimizer], none.memory[rank][MemoryKind::kOptimizer]);
  }
}

// A replica sends two leaves, and gets their sum once.
TEST(DataLeaves, TakeTheTimeOfTheirMessages) {
  const Plan one = PlanOf(JobOf(2, 2)), two = PlanOf(JobOf(2, 4));
  const StageId stage(0);
  EXPECT_GT(one.costs.Reduction(stage), 0);
  EXPECT_DOUBLE_EQ(two.costs.Reduction(stage), 1.5 * one.costs.Reduction(stage));
  EXPECT_DOUBLE_EQ(two.costs.Gather(stage), one.costs.Gather(stage));
  EXPECT_DOUBLE_EQ(SumTrafficOf(two)[0].bytes, 1.5 * SumTrafficOf(one)[0].bytes);
}

// Nine replicas are a chain, over which a rank's terms pass as one.
TEST(DataLeaves, OfAChainTakeTheTimeOfOneSum) {
  config::JobSpec job = JobOf(9, 9);
  job.global_batch = 18 * job.microbatch;
  const Plan one = PlanOf(job, 18);
  job.parallelism.data_leaves = 18;
  const Plan two = PlanOf(job, 18);
  const StageId stage(0);
  EXPECT_GT(one.costs.Reduction(stage), 0);
  EXPECT_DOUBLE_EQ(two.costs.Reduction(stage), one.costs.Reduction(stage));
  EXPECT_DOUBLE_EQ(one.costs.ReduceScatter(stage), one.costs.Reduction(stage));
  EXPECT_DOUBLE_EQ(one.costs.Gather(stage), one.costs.Reduction(stage) / 2);
}

TEST(DataLeaves, AnElasticJobGetsReplicasThatDivideThem) {
  config::JobSpec job = JobOf(1, 4);
  job.global_batch = 12 * job.microbatch;
  job.parallelism.data.reset();
  job.elastic.data = {.min = 1, .max = 4};
  EXPECT_EQ(PlanOf(job, 8).mesh.dp_size, 4);
  EXPECT_EQ(PlanOf(job, 6).mesh.dp_size, 2) << "3 replicas would have other sums";
  job.parallelism.data_leaves = 0;
  EXPECT_EQ(PlanOf(job, 6).mesh.dp_size, 3);
}

TEST(DataLeaves, RefusesSchedulesThatAddUpInAnotherOrder) {
  config::JobSpec no_flush = JobOf(2, 4, "pipedream-2bw");
  no_flush.adamw.clip_norm = 0;
  EXPECT_THAT(Refusal(no_flush),
              HasSubstr("parallelism.data_leaves is 4: does not go with pipedream-2bw"));
  EXPECT_THAT(Refusal(JobOf(2, 4, "dualpipe")), HasSubstr("two copies of the weights"));
  config::JobSpec job = JobOf(1, 2, "file:order.csv");
  job.global_batch = 2 * job.microbatch;
  job.parallelism.pipeline = 1;
  job.parallelism.schedule_csv = "0F0,0F1,0B1,0B0\n";
  EXPECT_THAT(Refusal(job), HasSubstr("out of microbatch order"));
}

TEST(DataLeaves, OlderWorkersWouldNotAddThem) {
  EXPECT_THAT(
      Refusal(JobOf(2, 4), {.max_workers = 8, .oldest_protocol = kDataLeavesProtocolVersion - 1}),
      HasSubstr("parallelism.data_leaves: is not known to a worker"));
}

}  // namespace
}  // namespace takt::plan
