// SPDX-License-Identifier: Apache-2.0
#include "coordinator/timeouts/timeouts.h"

#include "coordinator/timeouts/admission.h"
#include "gtest/gtest.h"

namespace takt::timeouts {
namespace {

TEST(Timeouts, BatchesAreStoredBetweenTwoLooksAtTheTime) { EXPECT_LE(kBatchInterval, kTick); }

TEST(Timeouts, LeaseOutlastsSeveralLostHeartbeats) {
  EXPECT_LT(kTick, kHeartbeat);
  EXPECT_LE(3 * kHeartbeat, kLease);
}

TEST(Timeouts, OtherRanksSpeakBeforeAWorkerWhoseStreamEndedIsJudged) {
  EXPECT_LT(1.25 * kHeartbeat, kRedial);  // the first one comes so late
  // The peers of a worker that died are told within two seconds: a round may come just before a
  // look is due.
  EXPECT_LE(kRedial + 2 * kTick, absl::Seconds(2));
}

TEST(Timeouts, FaultIsSettledWithinTenSeconds) {
  EXPECT_LT(kStopGrace, kLease);
  EXPECT_LT(kLease + kStopGrace, absl::Seconds(10));
  EXPECT_LT(kInputsGrace + kStopGrace, absl::Seconds(10));
}

TEST(Timeouts, AnotherCoordinatorLeadsBeforeWorkersAreMissed) {
  EXPECT_LT(kStateCall, kLeaderLease * 0.7);
  EXPECT_LT(kLeaderLease + 2 * kFollow + kStateCall, kReturnGrace);
}

TEST(Timeouts, WorkersHaveTwoLeasesToComeBack) {
  EXPECT_LT(2 * kLease, kReturnGrace);
  // A job whose ranks all finished while the coordinator was away still gets its reports.
  EXPECT_LT(kReturnGrace, kReportsGrace);
}

TEST(Timeouts, WorkersMayComeBackWhileMostAreSilent) { EXPECT_LE(2 * kReturnGrace, kCutOff); }

TEST(Timeouts, StreamThatIsNotReadOutlastsAReturn) { EXPECT_LT(kReturnGrace, kStreamStall); }

TEST(Timeouts, SlowWorkIsGivenUpLongAfterLostWorkersAre) {
  for (const absl::Duration limit : {kPlanningLimit, kAdmissionTimeout, kCommitTimeout}) {
    EXPECT_LT(kStreamStall, limit);
    EXPECT_LT(limit, kKeepEndedMetrics);
  }
}

TEST(Timeouts, LoadingMayTakeMuchLongerThanConnecting) {
  EXPECT_LE(10 * kAdmissionTimeout, kLoadingTimeout);
}

TEST(Timeouts, BackoffOutlastsARebootAndLeavesTimeForManyTries) {
  EXPECT_LT(kReturnGrace, 2 * kFirstBackoff);
  EXPECT_LT(kFirstBackoff, kLongestBackoff);
  EXPECT_LE(10 * kLongestBackoff, kGiveUp);
}

TEST(Timeouts, QuarantineOutlastsTheBackoffOfTheJobThatBlames) {
  EXPECT_LT(kLongestBackoff, kFirstQuarantine);
  EXPECT_LT(kFirstQuarantine, kBlameSoon);
  EXPECT_LT(kBlameSoon, kBlameLate);
  EXPECT_LE(kLongestQuarantine, kBlameLate);
}

TEST(Admission, AFewWorkersDoNotWaitAndTenThousandAreBackWithinAMinute) {
  EXPECT_EQ(ReturnTime(kConnectionsAtOnce / kConnectionsPerWorker), absl::ZeroDuration());
  EXPECT_EQ(ReturnTime(1050), absl::Seconds(4));
  EXPECT_GT(ReturnTime(10'000), kReturnGrace);
  EXPECT_LE(ReturnTime(10'000), absl::Minutes(1));
}

TEST(Timeouts, WorkerIsForgottenAfterItsJobs) { EXPECT_LT(kKeepEndedMetrics, kForgetWorker); }

}  // namespace
}  // namespace takt::timeouts
