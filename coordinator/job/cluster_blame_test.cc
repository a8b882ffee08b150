// SPDX-License-Identifier: Apache-2.0
// Tests which workers a job gets after faults that it blames on some of them.
#include <string>
#include <vector>

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

  // The only rank of the job refuses its directory until the job is given up as invalid, and at its
  // end so many workers are blamed. Returns how often it did so.
  int RefuseDirectory(const std::string& name, int blamed = 0) {
    int refusals = 0;
    while (Job(name).state != JobState::kFailed && refusals < 10) {
      for (int second = 0; second < 60 && Job(name).state == JobState::kQueued; ++second)
        AdvanceHearing(Names(), absl::Seconds(1));
      cluster_->Update(
          workers_.at(Job(name).ranks.at(0).worker).id,
          {.key = {name, Job(name).generation},
           .rank = Rank(0),
           .phase = control::Phase::kRefused,
           .failure = {.error = "checkpoint.directory is /proc/x: must be a directory",
                       .violations = {{.field = "checkpoint.directory", .value = "/proc/x"}},
                       .cause = control::Cause::kWorker}},
          Moment::Of(clock_));
      Settle();
      ++refusals;
    }
    EXPECT_EQ(Job(name).state, JobState::kFailed);
    EXPECT_TRUE(Job(name).invalid_input);
    EXPECT_EQ(Job(name).violations.size(), 1u);
    for (const auto& [worker, now] : cluster_->workers()) {
      EXPECT_FALSE(now.blame.quarantined) << worker;
      if (!now.blame.reasons.empty()) --blamed;
    }
    EXPECT_EQ(blamed, 0);
    return refusals;
  }

 private:
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, worker] : workers_) names.push_back(name);
    return names;
  }
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
  EXPECT_FALSE(Job("j").invalid_input);
  for (const auto& [name, worker] : cluster_->workers()) EXPECT_EQ(worker.blame.reasons, "");
}

TEST_F(ClusterBlameTest, TwoJobsWithAWrongDirectoryAreInvalidAndQuarantineNobody) {
  AttachWorkers(2);
  for (const char* const job : {"a", "b"}) {
    ASSERT_TRUE(Submit(SavingSpec(job, 1)).ok());
    EXPECT_EQ(RefuseDirectory(job), 2);
  }
}

// Only this worker can say so, four times.
TEST_F(ClusterBlameTest, AWrongDirectoryIsTheJobsOnTheOnlyWorkerToo) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  EXPECT_EQ(RefuseDirectory("j"), 4);
}

TEST_F(ClusterBlameTest, AFaultOfAnotherKindStaysWhenAWrongDirectoryIsForgiven) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  const std::string first = Job("j").ranks.at(0).worker;
  Say(first, key, 0, control::Phase::kFailed, "INTERNAL: double bit error");
  EXPECT_EQ(RefuseDirectory("j", /*blamed=*/1), 2);
  EXPECT_THAT(BlameOf(first).reasons, HasSubstr("job j: INTERNAL: double bit error"));
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
