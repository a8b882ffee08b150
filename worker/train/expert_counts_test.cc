// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_counts.h"

#include <cmath>
#include <initializer_list>
#include <memory>

#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace takt::train {
namespace {

constexpr int kBlocks = 3, kExperts = 4;

class ExpertCountsTest : public ::testing::Test {
 protected:
  ExpertCounts Create(std::int64_t pairs) {
    return ExpertCounts::Create(
               *backend_,
               {.num_microbatches = 2, .blocks = kBlocks, .experts = kExperts, .pairs = pairs})
        .value();
  }
  static void Set(const ExpertCounts& counts, std::int64_t step, int microbatch, int block,
                  std::initializer_list<std::int32_t> values) {
    std::int32_t* to =
        counts.At(step % ExpertCounts::kSteps, MicrobatchId(microbatch)) + block * kExperts;
    for (const std::int32_t value : values) *to++ = value;
  }

  std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
};

TEST_F(ExpertCountsTest, AddUpTheMicrobatchesOfAStep) {
  const ExpertCounts counts = Create(8);
  Set(counts, 1, 0, 1, {8, 0, 0, 0});
  Set(counts, 1, 1, 1, {0, 8, 0, 0});
  Set(counts, 2, 0, 1, {2, 2, 2, 2});
  Set(counts, 2, 1, 2, {0, 0, 7, 0});
  const std::vector<ExpertLoad> first = counts.Loads(StepId(1));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].block, 1);
  EXPECT_DOUBLE_EQ(first[0].max_over_mean, 2);
  EXPECT_DOUBLE_EQ(first[0].entropy, std::log(2) / std::log(4));
  EXPECT_EQ(first[0].dropped, 0);
  const std::vector<ExpertLoad> second = counts.Loads(StepId(2));
  ASSERT_EQ(second.size(), 2U);
  EXPECT_DOUBLE_EQ(second[0].max_over_mean, 1);
  EXPECT_DOUBLE_EQ(second[0].entropy, 1);
  EXPECT_EQ(second[1].block, 2);
  EXPECT_DOUBLE_EQ(second[1].max_over_mean, 4);
  EXPECT_DOUBLE_EQ(second[1].entropy, 0);
  EXPECT_EQ(second[1].dropped, 1);
}

TEST_F(ExpertCountsTest, SayHowUnevenlyRanksShareTheRows) {
  const ExpertCounts counts =
      ExpertCounts::Create(
          *backend_,
          {.num_microbatches = 2, .blocks = kBlocks, .experts = kExperts, .pairs = 8, .ranks = 2})
          .value();
  EXPECT_EQ(counts.Imbalance(StepId(1)), 0) << "nothing was computed yet";
  Set(counts, 1, 0, 1, {8, 0, 0, 0});  // twice the mean
  Set(counts, 1, 1, 1, {4, 0, 4, 0});  // even
  Set(counts, 1, 1, 2, {0, 2, 3, 3});  // half as much again
  EXPECT_DOUBLE_EQ(counts.Imbalance(StepId(1)), 1.5);
  EXPECT_EQ(Create(8).Imbalance(StepId(1)), 0);
}

TEST_F(ExpertCountsTest, OfAModelWithoutExpertsCountNothing) {
  const ExpertCounts counts = ExpertCounts::Create(*backend_, {.num_microbatches = 2}).value();
  EXPECT_EQ(counts.At(0, MicrobatchId(1)), nullptr);
  EXPECT_TRUE(counts.Loads(StepId(1)).empty());
}

TEST_F(ExpertCountsTest, OneExpertIsBalanced) {
  const ExpertCounts counts =
      ExpertCounts::Create(*backend_,
                           {.num_microbatches = 1, .blocks = 1, .experts = 1, .pairs = 5})
          .value();
  *counts.At(1, MicrobatchId(0)) = 5;
  const std::vector<ExpertLoad> loads = counts.Loads(StepId(1));
  ASSERT_EQ(loads.size(), 1U);
  EXPECT_EQ(loads[0].entropy, 1);
  EXPECT_EQ(loads[0].max_over_mean, 1);
}

}  // namespace
}  // namespace takt::train
