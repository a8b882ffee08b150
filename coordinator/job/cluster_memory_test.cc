// SPDX-License-Identifier: Apache-2.0
// Tests jobs that go on from the copies of their state in the memory of their workers.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MemoryTest : public ClusterTest {
 protected:
  // Reports of every rank, with the result of the step, as workers send them.
  void ReportResult(const std::string& worker, const control::JobKey& key, int rank,
                    std::int64_t step) {
    cluster_->Report(worker, "a",
                     {.key = key,
                      .rank = Rank(rank),
                      .sequence = step,
                      .step = StepId(step),
                      .step_seconds = 1,
                      .loss = 4.0 - static_cast<double>(step),
                      .tokens = 64},
                     workers_.at(worker).session);
    Advance(absl::Milliseconds(50));
  }
  void Abort(const std::string& worker, const control::JobKey& key, int rank, std::int64_t step) {
    cluster_->Update(workers_.at(worker).id,
                     {.key = key,
                      .rank = Rank(rank),
                      .phase = control::Phase::kAborted,
                      .status = {.last_step = StepId(step)}},
                     Moment::Of(clock_));
    Settle();
  }
  // The job j has done a step. Afterwards only w0 is there, and holds its state.
  void LoseOneOfTwo() {
    AttachWorkers(2);
    const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
    ReportResult("w0", key, 0, 1);
    ReportResult("w1", key, 1, 1);
    Lose("w1");
    Abort("w0", key, 0, 1);
  }
  control::MemoryCopies CopiesToldTo(const std::string& worker) {
    return Session(worker).Last<control::Prepare>()->assignment()->copies;
  }
  control::JobKey AdmitFromMemory(const std::string& name, std::int64_t step) {
    const control::JobKey key{name, Job(name).generation};
    const std::vector<control::BoundRank> ranks = Job(name).ranks;
    for (const control::BoundRank& bound : ranks) {
      cluster_->Update(
          workers_.at(bound.worker).id,
          {.key = key, .rank = bound.rank, .resumed = {.step = StepId(step), .from_memory = true}},
          Moment::Of(clock_));
      Settle();
    }
    return key;
  }
};

TEST_F(MemoryTest, AJobThatOnlyKeepsCopiesCannotBePausedAndIsToldWhatItLacks) {
  AttachWorkers(2);
  RunJob(CopyingSpec(Spec("j", 2, 100)));
  EXPECT_EQ(Pause("j").status().message(),
            "job j has no checkpoint directory, only copies in the memory of workers that a pause "
            "would free, so it could only start over; cancel it, or let it finish");
}

TEST_F(MemoryTest, AJobWithoutCheckpointsGoesOnFromCopies) {
  AttachWorkers(3);
  control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  EXPECT_EQ(CopiesToldTo("w0"), (control::MemoryCopies{.every_steps = 1, .shift = 1}));
  for (int step = 1; step <= 5; ++step) {
    ReportResult("w0", key, 0, step);
    ReportResult("w1", key, 1, step);
  }
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  Abort("w0", key, 0, 5);
  EXPECT_TRUE(Session("w0").Last<control::Acknowledge>()->keeps_copies);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(CopiesToldTo("w2"),
            (control::MemoryCopies{
                .every_steps = 1, .shift = 1, .at_most = StepId(5), .required = true}));
  key = AdmitFromMemory("j", 4);
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_EQ(Job("j").memory_step, StepId(4));
  EXPECT_EQ(Job("j").resumed_step, StepId(0));
  EXPECT_THAT(Job("j").reason, HasSubstr("training"));
  EXPECT_THAT(Job("j").transitions.back().reason,
              HasSubstr("going on after step 4, from copies in memory"));
}

// Rank 0's worker is lost before its report of a step that the other rank has done.
TEST_F(MemoryTest, TheResultsOfLastStepsAreAwaitedFromTheSurvivors) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  ReportResult("w0", key, 0, 1);
  ReportResult("w1", key, 1, 1);
  Lose("w0");
  Abort("w1", key, 1, 2);
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  EXPECT_THAT(Job("j").reason, HasSubstr("waiting for step reports of rank 1 (w1)"));
  ReportResult("w1", key, 1, 2);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2));
  EXPECT_EQ(CopiesToldTo("w2").at_most, StepId(2));
}

TEST_F(MemoryTest, AJobTakesTheWorkersThatHoldItsStateFirst) {
  AttachWorkers(5);  // w0 and w1 stay idle until w3 is lost
  ASSERT_TRUE(SetDrained("w0", true).ok());
  ASSERT_TRUE(SetDrained("w1", true).ok());
  const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  ReportResult("w2", key, 0, 1);
  ReportResult("w3", key, 1, 1);
  ASSERT_TRUE(SetDrained("w0", false).ok());
  ASSERT_TRUE(SetDrained("w1", false).ok());
  Lose("w3");
  Abort("w2", key, 0, 1);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  std::vector<std::string> workers;
  for (const control::BoundRank& bound : Job("j").ranks) workers.push_back(bound.worker);
  EXPECT_THAT(workers, ::testing::Contains("w2"));
}

TEST_F(MemoryTest, NoOtherJobGetsAWorkerThatHoldsTheOnlyStateOfOneThatWaits) {
  LoseOneOfTwo();
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  ASSERT_TRUE(Submit(Spec("other", 1, 10)).ok());
  Settle();
  EXPECT_EQ(Job("other").state, JobState::kQueued);
  EXPECT_THAT(Job("other").reason, HasSubstr("needs 1 worker, 1 idle: reserved for job j"));
  Attach("w1", "b");
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(CopiesToldTo("w0").at_most, StepId(1));
}

TEST_F(MemoryTest, ARestartOfTheCoordinatorForgetsNoCopies) {
  LoseOneOfTwo();
  ASSERT_TRUE(Submit(Spec("other", 1, 10)).ok());
  Restart();
  Attach("w0", "a");
  AdvanceHearing({"w0"}, absl::Minutes(1));
  EXPECT_EQ(Job("other").state, JobState::kQueued);
  EXPECT_THAT(Job("other").reason, HasSubstr("1 idle: reserved for job j"));
  Attach("w1", "b");
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(CopiesToldTo("w0").at_most, StepId(1));
}

TEST_F(MemoryTest, AfterARestartAJobWaitsForThoseThatHoldItsOnlyState) {
  LoseOneOfTwo();
  Restart();
  Attach("w2");
  Attach("w3");
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").reason, HasSubstr("waiting for 1 worker that held ranks or the only state"));
  Attach("w0", "a");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[0].worker, "w0");
}

TEST_F(MemoryTest, AJobWaitsForAHolderOfItsOnlyStateThatIsAway) {
  LoseOneOfTwo();
  Detach("w0");
  Attach("w2");
  Attach("w3");
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").reason, HasSubstr("may come back in a moment"));
  Attach("w0", "a");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[0].worker, "w0");
}

TEST_F(MemoryTest, AWallClockThatIsSetBackReservesNobodyForLonger) {
  LoseOneOfTwo();
  ASSERT_TRUE(Submit(Spec("other", 1, 10)).ok());
  clock_.Step(-absl::Hours(24));
  Restart();
  Attach("w0", "a");
  EXPECT_EQ(Job("other").state, JobState::kQueued);
  AdvanceHearing({"w0"}, absl::Minutes(61));
  EXPECT_EQ(Job("other").state, JobState::kStarting);
}

TEST_F(MemoryTest, ACancelFreesTheCopiesThatACoordinatorBeforeKnewOf) {
  LoseOneOfTwo();
  Restart();
  Attach("w0", "a");
  ASSERT_TRUE(Cancel("j").ok());
  ASSERT_NE(Session("w0").Last<control::Acknowledge>(), nullptr);
  EXPECT_FALSE(Session("w0").Last<control::Acknowledge>()->keeps_copies);
}

TEST_F(MemoryTest, AWorkerWithTheOnlyStateOfAJobServesOthersAfterAnHour) {
  LoseOneOfTwo();
  ASSERT_TRUE(Submit(Spec("other", 1, 10)).ok());
  AdvanceHearing({"w0"}, absl::Minutes(59));
  EXPECT_EQ(Job("other").state, JobState::kQueued);
  AdvanceHearing({"w0"}, absl::Minutes(2));
  EXPECT_EQ(Job("other").state, JobState::kStarting);
}

// It could begin anew, so it loses nothing.
TEST_F(MemoryTest, AJobWithoutAStepReservesNobody) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  Lose("w1");
  Abort("w0", key, 0, 0);
  ASSERT_TRUE(Submit(Spec("other", 1, 10)).ok());
  Settle();
  EXPECT_EQ(Job("other").state, JobState::kStarting);
}

TEST_F(MemoryTest, CopiesOfAJobThatHasEndedAreFreed) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  ReportResult("w0", key, 0, 1);
  ReportResult("w1", key, 1, 1);
  ASSERT_TRUE(Cancel("j").ok());
  Abort("w0", key, 0, 1);
  Abort("w1", key, 1, 1);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
  for (const char* worker : {"w0", "w1"})
    EXPECT_FALSE(Session(worker).Last<control::Acknowledge>()->keeps_copies);
}

TEST_F(MemoryTest, AJobWhoseStateIsGoneFails) {
  AttachWorkers(4);
  control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  ReportResult("w0", key, 0, 1);
  ReportResult("w1", key, 1, 1);
  Lose("w0");
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  key = {"j", Job("j").generation};
  for (const auto& [worker, rank] : std::map<std::string, int>{{"w2", 0}, {"w3", 1}}) {
    cluster_->Update(workers_.at(worker).id,
                     {.key = key,
                      .rank = Rank(rank),
                      .phase = control::Phase::kRefused,
                      .failure = {.error = "checkpoint.in_memory cannot bring the state back",
                                  .invalid_input = true,
                                  .cause = control::Cause::kJob}},
                     Moment::Of(clock_));
    Settle();
  }
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("cannot bring the state back"));
}

TEST_F(MemoryTest, AWorkerThatLeavesIsReplacedLikeALostOne) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(CopyingSpec(Spec("j", 2, 100)));
  ReportResult("w0", key, 0, 1);
  ReportResult("w1", key, 1, 1);
  Leave("w1");
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  Abort("w0", key, 0, 1);
  Abort("w1", key, 1, 1);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
}

// An emulated model has no state: nothing is kept, and a fault is the end.
TEST_F(MemoryTest, AJobThatCannotKeepCopiesSaysSo) {
  AttachWorkers(2);
  config::JobSpec spec = Spec("j", 2, 100);
  spec.copy_every_steps = 1;
  RunJob(spec);
  EXPECT_EQ(CopiesToldTo("w0").every_steps, 0);
  EXPECT_THAT(Job("j").notices,
              ElementsAre(HasSubstr("checkpoint.in_memory has no effect: an emulated model")));
  Lose("w1");
  EXPECT_NE(Job("j").state, JobState::kRecovering);
}

}  // namespace
}  // namespace takt::job
