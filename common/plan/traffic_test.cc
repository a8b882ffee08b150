// SPDX-License-Identifier: Apache-2.0
#include "common/plan/traffic.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kMicrobatches = 8;  // of each data-parallel rank

Plan PlanOf(const char* schedule, int pp_size, int dp_size, bool tied_head = true) {
  config::JobSpec job;
  job.name = "j";
  job.model = {.family = tied_head ? model::Family::kGpt2 : model::Family::kLlama,
               .layers = 8,
               .hidden = 64,
               .heads = 4,
               .kv_heads = 4,
               .inner = 256,
               .context = 32,
               .positions = 32,
               .vocab = 256,
               .tied_head = tied_head};
  job.global_batch = kMicrobatches * dp_size;
  job.parallelism.pipeline = pp_size;
  job.parallelism.data = dp_size;
  job.parallelism.schedule = schedule;
  return MakePlan(job, {.max_workers = pp_size * dp_size}).value();
}

std::map<std::pair<int, int>, Messages> ByRanks(const Plan& plan) {
  std::map<std::pair<int, int>, Messages> by_ranks;
  for (const Messages& messages : MessagesOf(plan.programs))
    by_ranks[{messages.from.value(), messages.to.value()}] = messages;
  return by_ranks;
}

TEST(MessagesOf, PassesEachMicrobatchForthAndBack) {
  const Plan plan = PlanOf("1f1b", 4, 1);
  const auto messages = ByRanks(plan);
  ASSERT_THAT(messages, SizeIs(2 * 3));
  for (int p = 0; p < 3; ++p) {
    for (const auto& [from, to] : {std::pair(p, p + 1), std::pair(p + 1, p)}) {
      EXPECT_EQ(messages.at({from, to}).count, kMicrobatches);
      EXPECT_EQ(messages.at({from, to}).bytes,
                kMicrobatches * plan.model.layers.front().cost.output_bytes);
    }
  }
}

TEST(MessagesOf, ChunksWrapAround) {
  const auto messages = ByRanks(PlanOf("interleaved-1f1b", 4, 1));
  ASSERT_THAT(messages, SizeIs(2 * 4));
  EXPECT_EQ(messages.at({0, 1}).count, 2 * kMicrobatches);
  EXPECT_EQ(messages.at({3, 0}).count, kMicrobatches);
  EXPECT_EQ(messages.at({0, 3}).count, kMicrobatches);
}

TEST(MessagesOf, OneRankSendsNone) { EXPECT_THAT(ByRanks(PlanOf("1f1b", 1, 1)), IsEmpty()); }

TEST(SumTraffic, IsTwiceAPartOfTheGradientsToEachReplica) {
  const Plan plan = PlanOf("1f1b", 2, 4, /*tied_head=*/false);
  const std::vector<SumTraffic> sums = SumTrafficOf(plan);
  ASSERT_THAT(sums, SizeIs(2));
  double bytes = 0;
  for (const SumTraffic& sum : sums) {
    EXPECT_EQ(sum.from, sum.to);
    EXPECT_FALSE(sum.within_pipeline);
    bytes += sum.bytes;
  }
  const auto gradients = static_cast<double>(4 * plan.model.num_parameters());
  EXPECT_DOUBLE_EQ(bytes, gradients * 2 / 4);
  EXPECT_THAT(SumTrafficOf(PlanOf("1f1b", 2, 1, /*tied_head=*/false)), IsEmpty());
}

TEST(SumTraffic, BothEndsOfAPipelineSumATiedEmbedding) {
  const std::vector<SumTraffic> sums = SumTrafficOf(PlanOf("1f1b", 3, 1));
  ASSERT_THAT(sums, SizeIs(2));
  EXPECT_EQ(sums[0].from, PpRank(0));
  EXPECT_EQ(sums[0].to, PpRank(2));
  EXPECT_EQ(sums[1].from, PpRank(2));
  EXPECT_TRUE(sums[0].within_pipeline);
  EXPECT_EQ(sums[0].bytes, 256 * 64 * 4);
  // On the V one rank has both ends.
  EXPECT_THAT(SumTrafficOf(PlanOf("zb-v", 3, 1)), IsEmpty());
}

TEST(SumTraffic, RanksWithTheSameStagesSumInAMirroredPipeline) {
  const std::vector<SumTraffic> sums = SumTrafficOf(PlanOf("chimera", 4, 1));
  ASSERT_THAT(sums, SizeIs(4 * 2));  // of each rank to itself, and to its mirror
  for (const SumTraffic& sum : sums) {
    EXPECT_TRUE(sum.from == sum.to || sum.from.value() + sum.to.value() == 3);
    EXPECT_FALSE(sum.within_pipeline);
  }
}

}  // namespace
}  // namespace takt::plan
