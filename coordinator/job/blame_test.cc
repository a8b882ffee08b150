// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/blame.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using store::JobFault;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BlameTest : public ::testing::Test {
 protected:
  BlameTest() {
    for (int rank = 0; rank < 3; ++rank) {
      run_.ranks.push_back({.bound = {.rank = Rank(rank), .worker = absl::StrCat("w", rank)},
                            .phase = RankPhase::kAborted,
                            .status = {.last_step = StepId(7),
                                       .instruction = "1F3",
                                       .waiting_for = "RECV 1F3 from pp rank 0"}});
    }
  }
  void Fail(int rank, const std::string& error) {
    run_.ranks[rank].phase = RankPhase::kFailed;
    run_.ranks[rank].error = error;
  }
  // Returns the rank that is guilty, -1 if nobody is.
  int Guilty() const {
    const Culprit culprit = FindGuilty(run_);
    return culprit.rank == nullptr ? -1 : culprit.rank->bound.rank.value();
  }
  // tried: for how many seconds since the fault before.
  static JobFault Lost(const std::string& worker, int tried) {
    return {.tried = absl::Seconds(tried), .worker = worker, .committed = StepId(4)};
  }
  static Moment At(int second) {
    return {.wall = absl::FromUnixSeconds(second), .steady = absl::Seconds(second)};
  }
  static JobFault Error(const std::string& worker, const std::string& error, int step) {
    return {.worker = worker, .error = error, .step = StepId(step), .committed = StepId(4)};
  }

  JobRun run_;
  DecideOptions options_;
};

TEST_F(BlameTest, WhoIsGoneWithoutAWordIsBlamedBeforeWhoReportsAnError) {
  Fail(0, "INTERNAL: boom");
  run_.ranks[1].lost = "its stream ended";
  run_.ranks[1].phase = RankPhase::kRunning;
  EXPECT_EQ(Guilty(), 1);
  EXPECT_EQ(FindGuilty(run_).what, "its stream ended");
  EXPECT_EQ(FindGuilty(run_).error, "");
}

TEST_F(BlameTest, AnErrorOfARanksOwnIsBlamedBeforeABrokenConnection) {
  Fail(0, "UNAVAILABLE: rank 2 left");
  Fail(2, "RESOURCE_EXHAUSTED: out of memory");
  EXPECT_EQ(Guilty(), 2);
  EXPECT_EQ(FindGuilty(run_).error, "RESOURCE_EXHAUSTED: out of memory");
}

TEST_F(BlameTest, ALinkThatBreaksBetweenLivingRanksIsNobodysFault) {
  Fail(0, "UNAVAILABLE: rank 1 left");
  Fail(1, "UNAVAILABLE: rank 0 left");
  EXPECT_EQ(Guilty(), -1);
}

TEST_F(BlameTest, ARankForWhichAnotherRanOutOfTimeIsBlamedIfItWaitedForNothing) {
  Fail(0, "DEADLINE_EXCEEDED: RECV 1B3 from pp rank 1 took longer than 5m");
  EXPECT_EQ(Guilty(), -1);
  run_.ranks[1].status.waiting_for.clear();
  EXPECT_EQ(Guilty(), 1);
  EXPECT_EQ(FindGuilty(run_).what, "it was stuck at 1F3");
  run_.ranks[2].status.waiting_for.clear();
  EXPECT_EQ(Guilty(), -1);  // it may be either
}

TEST_F(BlameTest, InvalidInputIsNotTheWorkers) {
  Fail(0, "no such file");
  run_.ranks[0].invalid_input = true;
  EXPECT_EQ(Guilty(), -1);
}

TEST_F(BlameTest, TheCauseThatARankTellsDecidesBeforeTheTextOfItsError) {
  Fail(0, "INTERNAL: boom");
  Fail(2, "UNAVAILABLE: the disk is gone");
  run_.ranks[2].cause = control::Cause::kWorker;
  EXPECT_EQ(Guilty(), 2);
  run_.ranks[2].cause = control::Cause::kPeer;
  EXPECT_EQ(Guilty(), 0) << "it cannot tell";
  run_.ranks[0].cause = control::Cause::kPeer;
  EXPECT_EQ(Guilty(), -1);
  EXPECT_EQ(FindGuilty(run_).error, "");
}

TEST_F(BlameTest, AnErrorOfTheJobIsNoWorkersAndCounts) {
  Fail(1, "the loss is not finite");
  run_.ranks[1].cause = control::Cause::kJob;
  EXPECT_EQ(Guilty(), -1);
  const std::vector<JobFault> faults = FaultsWith({}, run_, At(0));
  ASSERT_THAT(faults, SizeIs(1));
  EXPECT_EQ(faults[0].worker, "");
  EXPECT_EQ(faults[0].error, "the loss is not finite");
}

TEST_F(BlameTest, InputsThatAllRanksRefuseAreNoWorkersFault) {
  for (RankRun& rank : run_.ranks) {
    rank.phase = RankPhase::kRefused;
    rank.cause = control::Cause::kInputs;
    rank.error = "must exist";
  }
  EXPECT_EQ(Guilty(), -1);
  run_.ranks[0].phase = RankPhase::kAborted;
  EXPECT_EQ(Guilty(), 1);
}

TEST_F(BlameTest, ALastCheckpointThatFailsIsNoWorkersFaultAndCountsAsAnError) {
  run_.failed_save = "the checkpoint of step 20 failed: disk full";
  EXPECT_EQ(FindGuilty(run_).error, "") << "an earlier one";
  for (RankRun& rank : run_.ranks) rank.phase = RankPhase::kFinished;
  EXPECT_EQ(Guilty(), -1);
  EXPECT_EQ(FindGuilty(run_).error, run_.failed_save);
}

TEST_F(BlameTest, FaultsCountFromTheLastNewStep) {
  store::JobRecord job;
  Fail(1, std::string(1000, 'x'));
  run_.steps = StepCollector({.pp_size = 3}, StepId(4));
  for (int i = 0; i < 100; ++i) {
    job.faults = FaultsWith(job, run_, At(i));
    run_.tried_since = absl::Seconds(i);
  }
  EXPECT_THAT(job.faults, SizeIs(32));
  EXPECT_EQ(job.faults.front().time, absl::FromUnixSeconds(0));
  EXPECT_EQ(job.faults.back().time, absl::FromUnixSeconds(99));
  EXPECT_EQ(job.faults.back().worker, "w1");
  EXPECT_EQ(job.faults.back().step, StepId(7));
  EXPECT_EQ(job.faults.back().committed, StepId(4));
  EXPECT_THAT(job.faults.back().error, SizeIs(256));
  absl::Duration tried;
  for (const JobFault& fault : job.faults) tried += fault.tried;
  EXPECT_EQ(tried, absl::Seconds(99)) << "also of the faults that are not kept";
  run_.steps = StepCollector({.pp_size = 3}, StepId(5));
  EXPECT_THAT(FaultsWith(job, run_, At(100)), SizeIs(1));
}

TEST_F(BlameTest, TheSameErrorAtTheSameStepOnTwoWorkersIsTheJobs) {
  const JobFault first = Error("w1", "INTERNAL: loss is not finite", 7);
  EXPECT_EQ(WhyGivenUp({first}, options_), std::nullopt);
  EXPECT_EQ(WhyGivenUp({first, first}, options_), std::nullopt);
  EXPECT_EQ(WhyGivenUp({first, Error("w2", "INTERNAL: loss is not finite", 8)}, options_),
            std::nullopt);
  EXPECT_EQ(WhyGivenUp({first, Error("w2", "INTERNAL: boom", 7)}, options_), std::nullopt);
  EXPECT_THAT(
      WhyGivenUp({first, Lost("w3", 1), Error("w2", "INTERNAL: loss is not finite", 7)}, options_)
          .value_or(""),
      HasSubstr("workers w1 and w2 failed with the same error after step 7, so it is the job's"));
}

TEST_F(BlameTest, TheSameErrorOnTwoWorkersIsNoWorkersFaultButInputsThatOnlySomeRefuseAre) {
  const std::string error = "INTERNAL: loss is not finite";
  Fail(1, error);
  const std::vector<JobFault> faults = {Error("w1", error, 7), Lost("w3", 1),
                                        Error("w2", error, 7)};
  EXPECT_TRUE(IsOfTheJob(faults, FindGuilty(run_), options_));
  EXPECT_THAT(WrongFields(faults, FindGuilty(run_), options_), IsEmpty()) << "it names no field";
  EXPECT_FALSE(IsOfTheJob({faults[0], faults[0]}, FindGuilty(run_), options_)) << "of one worker";
  run_.ranks[1].phase = RankPhase::kRefused;
  run_.ranks[1].cause = control::Cause::kInputs;
  EXPECT_FALSE(IsOfTheJob(faults, FindGuilty(run_), options_));
  run_.ranks[1].lost = "its stream ended";
  run_.ranks[1].phase = RankPhase::kRunning;
  EXPECT_FALSE(IsOfTheJob(faults, FindGuilty(run_), options_));
}

// There is one worker only, so nobody else can say the same.
TEST_F(BlameTest, ARefusalOfAFieldAgainAndAgainIsTheJobsUnlessThereWasAnotherError) {
  const std::string error = "checkpoint.directory is /proc/x: must be a directory";
  const auto refusal = [&] {
    JobFault fault = Error("w1", error, 0);
    fault.committed = StepId(0);
    return fault;
  };
  run_.ranks[1].phase = RankPhase::kRefused;
  run_.ranks[1].cause = control::Cause::kWorker;
  run_.ranks[1].error = error;
  run_.ranks[1].violations = {{.field = "checkpoint.directory"}};
  std::vector<JobFault> faults(3, refusal());
  EXPECT_FALSE(IsOfTheJob(faults, FindGuilty(run_), options_)) << "it is not given up yet";
  faults.push_back(refusal());
  EXPECT_TRUE(IsOfTheJob(faults, FindGuilty(run_), options_));
  EXPECT_THAT(WrongFields(faults, FindGuilty(run_), options_), SizeIs(1));
  faults.back().committed = StepId(4);
  EXPECT_THAT(WrongFields(faults, FindGuilty(run_), options_), IsEmpty()) << "it was right once";
  faults[1].error = "INTERNAL: the device is lost";
  EXPECT_FALSE(IsOfTheJob(faults, FindGuilty(run_), options_));
  faults[1].error = error;
  run_.ranks[1].violations.clear();
  EXPECT_FALSE(IsOfTheJob(faults, FindGuilty(run_), options_)) << "it may be the worker's";
}

TEST_F(BlameTest, WorkersThatLeaveOneAfterTheOtherAreNoErrorOfTheJob) {
  store::JobRecord job;
  for (int i = 0; i < 10; ++i) {
    run_.ranks[1] = {.bound = {.rank = Rank(1), .worker = absl::StrCat("w", i)},
                     .phase = RankPhase::kRefused,
                     .leaves = true,
                     .error = "FAILED_PRECONDITION: the worker is leaving",
                     .cause = control::Cause::kWorker};
    EXPECT_EQ(Guilty(), 1);
    job.faults = FaultsWith(job, run_, At(i));
    EXPECT_EQ(job.faults.back().error, "");
    EXPECT_EQ(WhyGivenUp(job.faults, options_), std::nullopt);
  }
}

TEST_F(BlameTest, ErrorsAreCountedAndLossesAreNot) {
  std::vector<JobFault> faults;
  for (int i = 0; i < 20; ++i) faults.push_back(Lost(absl::StrCat("w", i), 10));
  EXPECT_EQ(WhyGivenUp(faults, options_), std::nullopt);
  for (int i = 0; i < 3; ++i) {
    faults.push_back(Error("w1", absl::StrCat("INTERNAL: ", i), 7));
    EXPECT_EQ(WhyGivenUp(faults, options_), std::nullopt);
  }
  faults.push_back(Error("w1", "INTERNAL: 3", 7));
  EXPECT_EQ(WhyGivenUp(faults, options_), "given up after 23 recoveries without a step after 4");
}

TEST_F(BlameTest, AJobThatGetsNowhereForAnHourIsGivenUpWhateverItsFaults) {
  std::vector<JobFault> faults = {Lost("w0", 0), Lost("w1", 1000), Lost("w2", 1000),
                                  Lost("w3", 1599)};
  EXPECT_EQ(WhyGivenUp(faults, options_), std::nullopt);
  faults.push_back(Lost("w4", 1));
  EXPECT_EQ(WhyGivenUp(faults, options_),
            "given up after 4 recoveries in 1h without a step after 4");
  // The clock was set forward while no coordinator ran.
  for (JobFault& fault : faults) fault.tried = absl::Seconds(10);
  faults.back().time = absl::FromUnixSeconds(9000);
  EXPECT_EQ(WhyGivenUp(faults, options_), std::nullopt);
  // Few faults may lie far apart, if steps take long.
  EXPECT_EQ(WhyGivenUp({Lost("w0", 0), Lost("w1", 7200)}, options_), std::nullopt);
}

TEST_F(BlameTest, BackoffDoublesFromTheSecondFaultToItsLimit) {
  EXPECT_EQ(BackoffAfter(0, options_), absl::ZeroDuration());
  EXPECT_EQ(BackoffAfter(1, options_), absl::ZeroDuration());
  EXPECT_EQ(BackoffAfter(2, options_), absl::Seconds(10));
  EXPECT_EQ(BackoffAfter(3, options_), absl::Seconds(20));
  EXPECT_EQ(BackoffAfter(6, options_), absl::Seconds(160));
  EXPECT_EQ(BackoffAfter(7, options_), absl::Minutes(5));
  EXPECT_EQ(BackoffAfter(1000, options_), absl::Minutes(5));
}

}  // namespace
}  // namespace takt::job
