// SPDX-License-Identifier: Apache-2.0
// Tests which workers a job gets after faults that it blames on some of them.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::HasSubstr;

class ClusterBlameTest : public ClusterTest {
 protected:
  // Jobs a and b have one rank each. Both blame w0, which had the rank of a and then that of b.
  void QuarantineW0() {
    AttachWorkers(4);
    FailOn("a");
    ASSERT_EQ(Job("a").ranks.at(0).worker, "w1");
    FailOn("b");
    ASSERT_EQ(Job("b").ranks.at(0).worker, "w2");
    ASSERT_TRUE(cluster_->workers().at("w0").blame.quarantined);
  }
  const membership::Blame& BlameOf(const std::string& worker) {
    return cluster_->workers().at(worker).blame;
  }

 private:
  void FailOn(const std::string& name) {
    const control::JobKey key = RunJob(SavingSpec(name, 1));
    ASSERT_EQ(Job(name).ranks.at(0).worker, "w0");
    Say("w0", key, 0, control::Phase::kFailed, "INTERNAL: of " + name);
    AdmitAll(name);
  }
};

TEST_F(ClusterBlameTest, AJobThatBlamesAWorkerGoesOnWithASpareOne) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Say("w0", key, 0, control::Phase::kFailed, "INTERNAL: double bit error");
  Say("w1", key, 1, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[0].worker, "w1");
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_THAT(BlameOf("w0").reasons, HasSubstr("job j: INTERNAL: double bit error"));
  EXPECT_FALSE(BlameOf("w0").quarantined);
  EXPECT_EQ(BlameOf("w1").reasons, "");
  // Another job takes it.
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(Job("k").ranks.at(0).worker, "w0");
}

TEST_F(ClusterBlameTest, WithoutASpareOneItGoesOnWithTheWorkerThatItBlames) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Say("w0", key, 0, control::Phase::kFailed, "INTERNAL: double bit error");
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(ClusterBlameTest, AWorkerThatTwoJobsBlameGetsNoWorkUntilItsTimeIsOver) {
  QuarantineW0();
  ASSERT_TRUE(Submit(Spec("c", 2)).ok());
  EXPECT_EQ(Job("c").state, JobState::kQueued);
  EXPECT_THAT(Job("c").reason, HasSubstr("1 quarantined"));
  for (int minute = 0; minute < 10; ++minute) {
    EXPECT_EQ(Job("c").state, JobState::kQueued);
    AdvanceHearing({"w0", "w1", "w2", "w3"}, absl::Minutes(1));
  }
  EXPECT_FALSE(BlameOf("w0").quarantined);
  EXPECT_EQ(Job("c").state, JobState::kStarting);
}

TEST_F(ClusterBlameTest, AClockThatIsSetEndsNoQuarantineAndMakesNoneLonger) {
  QuarantineW0();
  clock_.Step(absl::Hours(5));
  AdvanceHearing({"w0", "w1", "w2", "w3"}, absl::Minutes(1));
  EXPECT_TRUE(BlameOf("w0").quarantined);
  clock_.Step(-absl::Hours(9));
  AdvanceHearing({"w0", "w1", "w2", "w3"}, absl::Minutes(9));
  EXPECT_FALSE(BlameOf("w0").quarantined);
}

TEST_F(ClusterBlameTest, UndrainEndsAQuarantine) {
  QuarantineW0();
  ASSERT_TRUE(Submit(Spec("c", 2)).ok());
  const auto worker = SetDrained("w0", false);
  ASSERT_TRUE(worker.ok());
  EXPECT_FALSE(worker->blame.quarantined);
  EXPECT_EQ(worker->blame.reasons, "");
  EXPECT_EQ(Job("c").state, JobState::kStarting);
  Restart();
  Attach("w0");
  EXPECT_EQ(BlameOf("w0").reasons, "");
}

TEST_F(ClusterBlameTest, AQuarantineSurvivesARestart) {
  QuarantineW0();
  Restart();
  Attach("w0");
  EXPECT_TRUE(BlameOf("w0").quarantined);
  EXPECT_THAT(BlameOf("w0").reasons, HasSubstr("job b: INTERNAL: of b"));
  AdvanceHearing({"w0"}, absl::Seconds(20));  // the queue waits so long for workers that held ranks
  ASSERT_TRUE(Submit(Spec("c", 1)).ok());
  EXPECT_THAT(Job("c").reason, HasSubstr("0 idle"));
  EXPECT_THAT(Job("c").reason, HasSubstr("1 quarantined"));
}

TEST_F(ClusterBlameTest, AnErrorThatFollowsAJobToAnotherWorkerEndsItAndQuarantinesNobody) {
  AttachWorkers(3);
  control::JobKey key = RunJob(SavingSpec("j", 1));
  Say("w0", key, 0, control::Phase::kFailed, "INTERNAL: loss is not finite");
  key = AdmitAll("j");
  ASSERT_EQ(Job("j").ranks.at(0).worker, "w1");
  Say("w1", key, 0, control::Phase::kFailed, "INTERNAL: loss is not finite");
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("workers w0 and w1 failed with the same error after step "
                                         "1, so it is the job's"));
  for (const auto& [name, worker] : cluster_->workers()) EXPECT_FALSE(worker.blame.quarantined);
}

TEST_F(ClusterBlameTest, ABrokenConnectionBetweenLivingRanksBlamesNeither) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Say("w0", key, 0, control::Phase::kFailed, "UNAVAILABLE: rank 1 left");
  Say("w1", key, 1, control::Phase::kFailed, "UNAVAILABLE: rank 0 left");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(BlameOf("w0").reasons, "");
  EXPECT_EQ(BlameOf("w1").reasons, "");
}

TEST_F(ClusterBlameTest, AWorkerThatEndsAsItWasToldIsNotBlamed) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Leave("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  Detach("w1");
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_EQ(BlameOf("w1").reasons, "");
}

}  // namespace
}  // namespace takt::job
