// SPDX-License-Identifier: Apache-2.0
// Tests what a Cluster tells the queue, and what follows from its answers: priorities,
// reservations, preemption, quotas. placement/queue_test.cc has the rules themselves.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::HasSubstr;

class QueueTest : public ClusterTest {
 protected:
  QueueTest() { predicted_step_seconds_ = 1; }

  static config::JobSpec WithPriority(config::JobSpec spec, int priority) {
    spec.priority = priority;
    return spec;
  }
};

TEST_F(QueueTest, AHigherPriorityIsServedFirst) {
  ASSERT_TRUE(Submit(Spec("first", 1)).ok());
  ASSERT_TRUE(Submit(WithPriority(Spec("urgent", 1), 51)).ok());
  Attach("w0");
  EXPECT_EQ(Job("urgent").state, JobState::kStarting);
  EXPECT_EQ(Job("first").state, JobState::kQueued);
}

TEST_F(QueueTest, ALargeJobReservesAndASmallOneOvertakesIfItEndsBefore) {
  AttachWorkers(3);
  RunJob("x", 2, 100);  // 100 s
  ASSERT_TRUE(Submit(Spec("large", 3)).ok());
  EXPECT_EQ(Job("large").reason,
            "needs 3 workers, 1 idle: 2 held by job x; 3 are reserved for it in about 2 min");
  ASSERT_TRUE(Submit(Spec("long", 1, 101)).ok());
  EXPECT_EQ(Job("long").state, JobState::kQueued);
  EXPECT_THAT(Job("long").reason, HasSubstr("needs 1 worker, 1 idle: reserved for job large;"));
  ASSERT_TRUE(Submit(Spec("short", 1, 100)).ok());
  EXPECT_EQ(Job("short").state, JobState::kStarting);
}

TEST_F(QueueTest, AReservationFollowsTheMeasuredSteps) {
  AttachWorkers(2);
  predicted_step_seconds_ = 2;
  const control::JobKey key = RunJob("x", 2, 100);
  ASSERT_TRUE(Submit(Spec("next", 2)).ok());
  EXPECT_THAT(Job("next").reason, HasSubstr("2 are reserved for it in about 5 min"));
  TrainTo(key, 2);  // each took 1 s
  Advance(absl::Seconds(1));
  EXPECT_THAT(Job("next").reason, HasSubstr("2 are reserved for it in about 2 min"));
}

TEST_F(QueueTest, ARecoveringJobKeepsTheSpareWorkerThatItNeeds) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Lose("w1");
  ASSERT_EQ(Job("j").state, JobState::kRecovering);
  ASSERT_TRUE(Submit(WithPriority(Spec("k", 1, 1000), 100)).ok());
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  EXPECT_THAT(Job("k").reason, HasSubstr("1 idle: reserved for job j;"));
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("k").state, JobState::kQueued);
}

TEST_F(QueueTest, AJobOfLowerPriorityIsPausedAndGoesBackToTheQueueByItself) {
  AttachWorkers(2);
  const control::JobKey low = RunJob(WithPriority(SavingSpec("low", 2, 1000), 10));
  TrainTo(low, 5);
  ASSERT_TRUE(Submit(Spec("high", 1)).ok());
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::Halt>()->reason,
            "paused for job high, whose priority is 50");
  EXPECT_EQ(Job("high").reason,
            "needs 1 worker, 0 idle: 2 held by job low (halting); 1 is reserved for it in less "
            "than a minute");
  SaveAt(low, 5);
  SayAll(low, control::Phase::kHalted);
  EXPECT_EQ(Job("high").state, JobState::kStarting);
  EXPECT_EQ(Job("low").state, JobState::kQueued);
  EXPECT_EQ(Job("low").transitions.back().reason,
            "paused for job high, whose priority is 50; goes on from the checkpoint of step 5");
  const control::JobKey high = AdmitAll("high");
  TrainTo(high, 2);
  SayAll(high, control::Phase::kFinished);
  EXPECT_EQ(Job("high").state, JobState::kSucceeded);
  EXPECT_EQ(Job("low").state, JobState::kStarting);
  EXPECT_EQ(Job("low").generation, Generation(2));
}

TEST_F(QueueTest, APreemptionSurvivesARestart) {
  AttachWorkers(1);
  const control::JobKey low = RunJob(WithPriority(SavingSpec("low", 1, 1000), 10));
  TrainTo(low, 5);
  ASSERT_TRUE(Submit(Spec("high", 1)).ok());
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);
  Restart();
  Attach("w0", "a", membership::Hold{low, Rank(0)});
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);
  SaveAt(low, 5);
  SayAll(low, control::Phase::kHalted);
  EXPECT_EQ(Job("high").state, JobState::kStarting);
  EXPECT_EQ(Job("low").state, JobState::kQueued);
}

TEST_F(QueueTest, AJobWithoutCheckpointsOrWithoutProgressIsNotPaused) {
  AttachWorkers(2);
  const control::JobKey fixed = RunJob(WithPriority(Spec("fixed", 1, 1000), 10));
  TrainTo(fixed, 5);
  const control::JobKey fresh = RunJob(WithPriority(SavingSpec("fresh", 1, 1000), 10));
  ASSERT_TRUE(Submit(Spec("high", 1)).ok());
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Session("w1").Last<control::Halt>(), nullptr);
  TrainTo(fresh, 1);
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_NE(Session("w1").Last<control::Halt>(), nullptr);
}

TEST_F(QueueTest, AJobThatWasPausedDoesAStepBeforeItIsPausedAgain) {
  AttachWorkers(1);
  const control::JobKey first = RunJob(WithPriority(SavingSpec("low", 1, 1000), 10));
  TrainTo(first, 5);
  ASSERT_TRUE(Pause("low").ok());
  SaveAt(first, 5);
  SayAll(first, control::Phase::kHalted);
  ASSERT_TRUE(Resume("low").ok());
  const control::JobKey second = AdmitAll("low", 5);
  Session("w0").commands.clear();
  ASSERT_TRUE(Submit(Spec("high", 1)).ok());
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  TrainTo(second, 6);
  EXPECT_NE(Session("w0").Last<control::Halt>(), nullptr);
}

TEST_F(QueueTest, APausedJobOfTheUserStaysPausedAndItsWorkersAreFree) {
  AttachWorkers(1);
  const control::JobKey low = RunJob(WithPriority(SavingSpec("low", 1, 1000), 10));
  TrainTo(low, 5);
  ASSERT_TRUE(Submit(Spec("high", 1)).ok());
  ASSERT_TRUE(Pause("low").ok());  // while it halts for the other
  SaveAt(low, 5);
  SayAll(low, control::Phase::kHalted);
  EXPECT_EQ(Job("low").state, JobState::kPaused);
  EXPECT_EQ(Job("high").state, JobState::kStarting);
}

TEST_F(QueueTest, AQuotaLimitsTheWorkersOfAnOwner) {
  quotas_ = placement::Quotas({{"user/ada", 2}});
  Restart();
  AttachWorkers(4);
  owner_ = "user/ada";
  const control::JobKey first = RunJob("first", 2);
  ASSERT_TRUE(Submit(Spec("second", 1)).ok());
  EXPECT_EQ(Job("second").reason, "needs 1 worker: user/ada may hold 2 at once and holds 2");
  owner_ = "user/bob";
  ASSERT_TRUE(Submit(Spec("other", 2)).ok());
  EXPECT_EQ(Job("other").state, JobState::kStarting);
  TrainTo(first, 2);
  SayAll(first, control::Phase::kFinished);
  EXPECT_EQ(Job("second").state, JobState::kStarting);
}

TEST_F(QueueTest, APriorityIsStored) {
  ASSERT_TRUE(Submit(Spec("first", 1)).ok());
  ASSERT_TRUE(Submit(WithPriority(Spec("urgent", 1), 80)).ok());
  Restart();
  Attach("w0");
  EXPECT_EQ(Job("urgent").state, JobState::kStarting);
}

}  // namespace
}  // namespace takt::job
