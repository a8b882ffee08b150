// SPDX-License-Identifier: Apache-2.0
#include "worker/train/halt_request.h"

#include "gtest/gtest.h"

namespace takt::train {
namespace {

TEST(HaltRequest, TheSumOverRanksTellsWhetherAnyAsksAndWhetherOneSaves) {
  EXPECT_EQ(WeightOf(nullptr), 0);
  const std::atomic<HaltRequest> none = HaltRequest::kNone, memory = HaltRequest::kInMemory,
                                 saving = HaltRequest::kSaving;
  EXPECT_EQ(RequestOf(WeightOf(&none)), HaltRequest::kNone);
  constexpr double kManyRanks = 4096;
  EXPECT_EQ(RequestOf(kManyRanks * WeightOf(&memory)), HaltRequest::kInMemory);
  EXPECT_EQ(RequestOf(kManyRanks * WeightOf(&saving)), HaltRequest::kSaving);
  EXPECT_EQ(RequestOf(kManyRanks * WeightOf(&memory) + WeightOf(&saving)), HaltRequest::kSaving);
}

}  // namespace
}  // namespace takt::train
