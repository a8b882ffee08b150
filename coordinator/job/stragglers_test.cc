// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/stragglers.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StragglersTest : public ::testing::Test {
 protected:
  StragglersTest() { Watch({.pp_size = 3}, {1, 2, 1}); }

  void Watch(mesh::Mesh mesh, std::vector<double> predicted) {
    watch_ = StragglerWatch(mesh, std::move(predicted));
    step_ = 0;
  }
  // So many steps take this long, by rank.
  void Train(int steps, const std::vector<double>& busy) {
    for (int i = 0; i < steps; ++i) watch_.Add(StepId(++step_), busy);
  }

  StragglerWatch watch_;
  std::int64_t step_ = 0;
};

TEST_F(StragglersTest, ARankThatIsSlowForTwentyStepsIsNamed) {
  Train(5, {1, 2, 1});
  Train(19, {1, 3, 1});
  EXPECT_EQ(watch_.named(), std::nullopt);
  Train(1, {1, 3, 1});
  EXPECT_EQ(watch_.named(), (Straggler{.rank = Rank(1), .slowdown = 1.5, .since = StepId(6)}));
  EXPECT_EQ(DescribeStraggler(*watch_.named()),
            "computes 1.5 times as long as predicted, beside the other ranks, since step 6");
}

TEST_F(StragglersTest, OneGoodStepBeginsTheCountAgain) {
  Train(19, {1, 4, 1});
  Train(1, {1, 2, 1});
  Train(19, {1, 4, 1});
  EXPECT_EQ(watch_.named(), std::nullopt);
}

TEST_F(StragglersTest, APlanThatIsWrongForAllNamesNobody) {
  Train(50, {3, 6, 3});
  EXPECT_EQ(watch_.named(), std::nullopt);
}

TEST_F(StragglersTest, ANamedRankIsForgottenAfterTwentyUsualSteps) {
  Train(20, {1, 2, 2});
  ASSERT_TRUE(watch_.named().has_value());
  EXPECT_EQ(watch_.named()->rank, Rank(2));
  Train(19, {1, 2, 1});
  EXPECT_TRUE(watch_.named().has_value());
  Train(1, {1, 2, 1});
  EXPECT_EQ(watch_.named(), std::nullopt);
}

TEST_F(StragglersTest, OfTwoRanksOneCanBeSlow) {
  Watch({.pp_size = 2}, {1, 1});
  Train(20, {2, 1});
  ASSERT_TRUE(watch_.named().has_value());
  EXPECT_EQ(watch_.named()->rank, Rank(0));
}

TEST_F(StragglersTest, OfSeveralTheSlowestIsNamed) {
  Watch({.pp_size = 5}, {1, 1, 1, 1, 1});
  Train(20, {1, 2, 1, 3, 1});
  ASSERT_TRUE(watch_.named().has_value());
  EXPECT_EQ(watch_.named()->rank, Rank(3));
}

// Ranks 2 and 3 are replicas.
TEST_F(StragglersTest, AStageThatIsSlowOnAllItsReplicasNamesNobody) {
  Watch({.pp_size = 3, .dp_size = 2}, {1, 1, 1});
  Train(50, {1, 1, 2, 2, 1, 1});
  EXPECT_EQ(watch_.named(), std::nullopt);
  Train(20, {1, 1, 2, 4, 1, 1});
  ASSERT_TRUE(watch_.named().has_value());
  EXPECT_EQ(watch_.named()->rank, Rank(3));
}

TEST_F(StragglersTest, WithoutAPredictionOrAllReportsNobodyIsNamed) {
  Train(50, {1, 9});
  EXPECT_EQ(watch_.named(), std::nullopt);
  Watch({.pp_size = 3}, {});
  Train(50, {1, 9, 1});
  EXPECT_EQ(watch_.named(), std::nullopt);
}

TEST(PredictedCompute, CountsTheForwardsAndBackwardsOfAStep) {
  plan::Plan plan{.mesh = {.pp_size = 2}};
  plan.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                    {StageId(1), PpRank(1), LayerId(1), LayerId(2)},
                    {StageId(2), PpRank(0), LayerId(2), LayerId(3)}};
  plan.costs.forward = {1, 2, 3};
  plan.costs.backward = {2};
  EXPECT_THAT(PredictedCompute(plan), IsEmpty()) << "it has no microbatches";
  plan.schedule.num_microbatches = 4;
  EXPECT_THAT(PredictedCompute(plan), ElementsAre(4 * (3 + 5), 4 * 4));
  plan.schedule.placement = schedule::Placement::kBidirectional;
  EXPECT_THAT(PredictedCompute(plan), IsEmpty());
}

}  // namespace
}  // namespace takt::job
