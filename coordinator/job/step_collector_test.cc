// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/step_collector.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class StepCollectorTest : public ::testing::Test {
 protected:
  bool Add(int rank, std::int64_t step, double busy = 1.0, std::int64_t sequence = 0) {
    return collector_.Add({.rank = Rank(rank),
                           .sequence = sequence ? sequence : step,
                           .step = StepId(step),
                           .step_seconds = 2.0,
                           .busy_seconds = busy,
                           .loss = rank == 0 ? 2.5 : -1,
                           .tokens = rank == 0 ? 64 : -1});
  }
  static std::vector<std::int64_t> StepsOf(const std::vector<store::StepRecord>& records) {
    std::vector<std::int64_t> steps;
    for (const store::StepRecord& record : records) steps.push_back(record.step.value());
    return steps;
  }

  StepCollector collector_{mesh::Mesh{.pp_size = 2, .dp_size = 2}, StepId(0)};
};

TEST_F(StepCollectorTest, AStepIsReadyOnceAllRanksReportedIt) {
  for (const int rank : {3, 0, 1}) Add(rank, 1);
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
  Add(2, 1);
  EXPECT_THAT(StepsOf(collector_.TakeReady()), ElementsAre(1));
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
}

TEST_F(StepCollectorTest, LossComesFromRankZeroAndTheBubbleIsTheMeanOverReplicas) {
  Add(0, 1, 1.0);  // pp rank 0: idle 0.5 and 0.25
  Add(1, 1, 1.5);
  Add(2, 1, 2.0);  // pp rank 1: idle 0 and 0.5
  Add(3, 1, 1.0);
  const auto steps = collector_.TakeReady();
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].loss, 2.5);
  EXPECT_EQ(steps[0].tokens, 64);
  EXPECT_THAT(steps[0].bubble_by_pp_rank,
              ElementsAre(DoubleNear(0.375, 1e-12), DoubleNear(0.25, 1e-12)));
  EXPECT_NEAR(steps[0].bubble_fraction, 0.3125, 1e-12);
}

TEST_F(StepCollectorTest, StepsComeInOrderWhateverTheOrderOfReports) {
  for (const int step : {2, 1, 3}) {
    for (int rank = 3; rank >= 0; --rank) Add(rank, step);
  }
  EXPECT_THAT(StepsOf(collector_.TakeReady()), ElementsAre(1, 2, 3));
}

TEST_F(StepCollectorTest, ALaterStepWaitsForTheOneBefore) {
  for (int rank = 0; rank < 4; ++rank) Add(rank, 2);
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) Add(rank, 1);
  EXPECT_THAT(StepsOf(collector_.TakeReady()), ElementsAre(1, 2));
}

TEST_F(StepCollectorTest, ReportsSentAgainCountOnceButAreAcknowledged) {
  for (int rank = 0; rank < 4; ++rank) Add(rank, 1);
  EXPECT_THAT(collector_.TakeReady(), SizeIs(1));
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(1)), SizeIs(4));
  Add(0, 1, 1.0, 1);
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(1)), ElementsAre(Pair(Rank(0), 1)));
}

TEST_F(StepCollectorTest, OnlyCommittedReportsAreAcknowledgedByTheirNewestSequence) {
  for (std::int64_t step = 1; step <= 3; ++step) Add(0, step, 1.0, step + 10);
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(0)), IsEmpty());
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(2)), ElementsAre(Pair(Rank(0), 12)));
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(2)), IsEmpty());
}

// A worker forgets all reports up to the sequence that is acknowledged.
TEST_F(StepCollectorTest, ALateReportAcknowledgesNoStepThatIsNotCommitted) {
  Add(0, 1, 1.0, 1);
  Add(0, 2, 1.0, 2);
  collector_.AddOther(Rank(0), 3, StepId(1));  // the checkpoint of step 1
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(1)), ElementsAre(Pair(Rank(0), 1)));
  EXPECT_THAT(collector_.TakeAcknowledgements(StepId(2)), ElementsAre(Pair(Rank(0), 3)));
}

TEST_F(StepCollectorTest, AnEndedRankIsNotWaitedFor) {
  for (const int rank : {0, 1, 2}) Add(rank, 1);
  collector_.EndRank(Rank(3));
  EXPECT_THAT(StepsOf(collector_.TakeReady()), ElementsAre(1));
}

TEST_F(StepCollectorTest, ARankThatLagsFarBehindHoldsUpNobody) {
  for (std::int64_t step = 1; step <= StepCollector::kMaxLag; ++step) Add(0, step);
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
  Add(0, StepCollector::kMaxLag + 1);
  const auto steps = collector_.TakeReady();
  EXPECT_THAT(StepsOf(steps), ElementsAre(1));
  EXPECT_THAT(steps[0].bubble_by_pp_rank, IsEmpty());
  EXPECT_NEAR(steps[0].bubble_fraction, 0.5, 1e-12);
}

// All ranks know the result of a step. Its part may be the one that never came.
TEST_F(StepCollectorTest, IfRankZeroIsGoneAnotherRankTellsTheResult) {
  for (const int step : {1, 2}) {
    for (const int rank : {1, 2, 3}) {
      collector_.Add({.rank = Rank(rank),
                      .sequence = step,
                      .step = StepId(step),
                      .step_seconds = 2,
                      .loss = 3.5 - step,
                      .tokens = 64});
    }
  }
  Add(0, 1);
  EXPECT_THAT(StepsOf(collector_.TakeReady()), ElementsAre(1));
  EXPECT_THAT(collector_.TakeReady(), IsEmpty());
  collector_.EndRank(Rank(0));
  const auto steps = collector_.TakeReady();
  ASSERT_THAT(StepsOf(steps), ElementsAre(2));
  EXPECT_EQ(steps[0].loss, 1.5);
  EXPECT_EQ(collector_.newest_of(Rank(0)), StepId(1));
  EXPECT_EQ(collector_.newest_of(Rank(3)), StepId(2));
}

TEST_F(StepCollectorTest, TheRestIsWhatRankZeroReported) {
  for (const int step : {1, 2}) Add(0, step);
  Add(1, 3);
  EXPECT_THAT(StepsOf(collector_.TakeRest()), ElementsAre(1, 2));
  EXPECT_THAT(collector_.TakeRest(), IsEmpty());
}

TEST_F(StepCollectorTest, ReportsOfNoSuchRankOrStepAreRefused) {
  EXPECT_FALSE(Add(4, 1));
  EXPECT_FALSE(Add(-1, 1));
  EXPECT_FALSE(Add(0, 0));
}

TEST_F(StepCollectorTest, ReportsOfStepsThatNobodyCanHaveDoneAreRefused) {
  EXPECT_TRUE(Add(0, StepCollector::kMaxAhead));
  EXPECT_FALSE(Add(0, StepCollector::kMaxAhead + 1));
  EXPECT_FALSE(collector_.AddOther(Rank(0), 1, StepId(StepCollector::kMaxAhead + 1)));
  EXPECT_FALSE(collector_.AddOther(Rank(4), 1, StepId(1)));
  EXPECT_FALSE(Add(0, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace
}  // namespace takt::job
