// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "coordinator/timeouts/admission.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::membership {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipTest : public ::testing::Test {
 protected:
  static control::Hello HelloOf(const std::string& worker, const std::string& incarnation) {
    return {.worker = worker, .incarnation = incarnation, .protocol_version = kProtocolVersion};
  }
  absl::StatusOr<Membership::Attached> Attach(const std::string& worker,
                                              const std::string& incarnation, int session) {
    return members_.Attach(HelloOf(worker, incarnation), SessionId(session), Moment::Of(clock_));
  }
  // voucher: what other ranks say for every worker that is silent.
  std::vector<Loss> Expire(const Voucher& voucher = {}) {
    return members_.Expire(Moment::Of(clock_), [&](const Worker&) { return voucher; });
  }
  std::optional<Loss> Detach(int session) {
    return members_.Detach(SessionId(session), "its stream ended", Moment::Of(clock_));
  }
  // The worker does not come back after its stream has ended.
  void Lose(int session) {
    ASSERT_TRUE(Detach(session).has_value());
    clock_.Advance(timeouts::kRedial);
    ASSERT_THAT(Expire(), SizeIs(1));
  }
  void HearAll(int sessions) {
    for (int session = 1; session <= sessions; ++session)
      members_.Heard(SessionId(session), Moment::Of(clock_));
  }
  WorkerState StateOf(const std::string& worker) { return members_.Find(worker)->state(); }
  static Hold HoldOf(const std::string& job) {
    return {.key = {job, Generation(1)}, .rank = Rank(0)};
  }

  FakeClock clock_;
  Membership members_{{}, {"old"}};
};

TEST_F(MembershipTest, AnAttachedWorkerIsIdleThenBusyThenIdle) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  members_.SetHold("w0", HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  EXPECT_TRUE(members_.Release("w0", HoldOf("j").key));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(MembershipTest, AWorkerWhoseStreamEndedIsAwayAndSoonLostWithItsHold) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  const auto away = Detach(1);
  ASSERT_TRUE(away.has_value());
  EXPECT_TRUE(away->away);
  EXPECT_EQ(away->session, SessionId(1));
  EXPECT_EQ(away->hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kAway);
  EXPECT_EQ(members_.Find("w0")->hold, HoldOf("j"));
  EXPECT_FALSE(Detach(1).has_value());
  clock_.Advance(timeouts::kRedial - absl::Milliseconds(1));
  EXPECT_THAT(Expire(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const auto losses = Expire();
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_EQ(losses[0].worker, "w0");
  EXPECT_FALSE(losses[0].away);
  EXPECT_EQ(losses[0].reason, "its stream ended");
  EXPECT_EQ(losses[0].hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kLost);
  EXPECT_FALSE(members_.Find("w0")->hold.has_value());
}

TEST_F(MembershipTest, OneResetConnectionIsNotADeath) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  Detach(1);
  clock_.Advance(absl::Milliseconds(100));
  control::Hello hello = HelloOf("w0", "a");
  hello.running = {.key = HoldOf("j").key, .rank = HoldOf("j").rank};
  const auto attached = members_.Attach(hello, SessionId(2), Moment::Of(clock_)).value();
  EXPECT_FALSE(attached.loss.has_value());
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  clock_.Advance(timeouts::kRedial);
  EXPECT_THAT(Expire(), IsEmpty());
}

TEST_F(MembershipTest, ManyThatLoseTheirStreamsAtOnceHaveTimeToBeAdmitted) {
  constexpr int kWorkers = 2000, kAway = 200;
  for (int session = 1; session <= kWorkers; ++session)
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", session).ok());
  for (int session = 1; session <= kAway; ++session) ASSERT_TRUE(Detach(session).has_value());
  clock_.Advance(timeouts::kRedial);
  EXPECT_THAT(Expire(), IsEmpty());
  clock_.Advance(timeouts::ReturnTime(kAway) - absl::Milliseconds(1));
  EXPECT_THAT(Expire(), IsEmpty()) << "also those whose streams ended first";
  // One worker more is known that has no stream.
  clock_.Advance(timeouts::ReturnTime(kAway + 1) - timeouts::ReturnTime(kAway) +
                 absl::Milliseconds(1));
  EXPECT_THAT(Expire(), SizeIs(kAway));
}

TEST_F(MembershipTest, WhileSomeOfManyComeBackTheOthersAreWaitedFor) {
  constexpr int kWorkers = 2000, kAway = 200;
  clock_.Advance(absl::Hours(1));
  members_.RenewLeases(Moment::Of(clock_), timeouts::kReturnGrace);  // as after a stall
  for (int session = 1; session <= kWorkers; ++session)
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", session).ok());
  for (int session = 1; session <= kAway; ++session) ASSERT_TRUE(Detach(session).has_value());
  // One comes back each second, so the last ones of the rest are not lost before the time of all.
  const absl::Duration most = timeouts::kReturnGrace + timeouts::ReturnTime(kAway);
  absl::Duration passed;
  for (int session = 1; passed + absl::Seconds(1) < most; ++session) {
    clock_.Advance(absl::Seconds(1));
    passed += absl::Seconds(1);
    HearAll(kWorkers + session);
    EXPECT_THAT(Expire(), IsEmpty()) << passed;
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", kWorkers + session).ok());
  }
  clock_.Advance(absl::Seconds(1));
  EXPECT_GT(Expire().size(), kAway / 2);
}

TEST_F(MembershipTest, LostWorkersGiveNoTimeToOthers) {
  constexpr int kWorkers = 2000, kLost = 200;
  for (int session = 1; session <= kWorkers; ++session)
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", session).ok());
  for (int session = 1; session <= kLost; ++session) ASSERT_TRUE(Detach(session).has_value());
  clock_.Advance(timeouts::kRedial + timeouts::ReturnTime(kLost + 1));
  ASSERT_THAT(Expire(), SizeIs(kLost));
  HearAll(kWorkers);
  Lose(kLost + 1);
}

TEST_F(MembershipTest, AWorkerThatWasToldToGoIsLostAsSoonAsItsStreamEnds) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetLeaving(SessionId(1));
  EXPECT_FALSE(Detach(1)->away);
  EXPECT_EQ(StateOf("w0"), WorkerState::kLost);
}

TEST_F(MembershipTest, AWorkerThatComesBackWithoutItsRankHasLostIt) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  Detach(1);
  const auto attached = Attach("w0", "a", 2).value();
  ASSERT_TRUE(attached.loss.has_value());
  EXPECT_EQ(attached.loss->hold, HoldOf("j"));
  EXPECT_EQ(attached.loss->reason, "it came back without its rank");
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(MembershipTest, ANewProcessOfAWorkerThatIsAwayTakesItsPlaceAtOnce) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  Detach(1);
  const auto attached = Attach("w0", "b", 2).value();
  ASSERT_TRUE(attached.loss.has_value());
  EXPECT_EQ(attached.loss->incarnation, "a");
  EXPECT_EQ(attached.loss->hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_EQ(Attach("w0", "a", 3).status().code(), absl::StatusCode::kAborted);
}

TEST_F(MembershipTest, SilenceForALeaseLosesTheWorker) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  clock_.Advance(absl::Seconds(4));
  members_.Heard(SessionId(1), Moment::Of(clock_));
  clock_.Advance(absl::Milliseconds(4999));
  EXPECT_THAT(Expire(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const auto losses = Expire();
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_EQ(losses[0].reason, "nothing heard from it for 5s");
  EXPECT_EQ(losses[0].session, SessionId(1));
  EXPECT_THAT(Expire(), IsEmpty());
}

TEST_F(MembershipTest, ANameWithALivingIncarnationIsRefusedToAnother) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  const absl::Status status = Attach("w0", "b", 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(status.ToString(), HasSubstr("incarnation a"));
  EXPECT_EQ(members_.Find("w0")->session, SessionId(1));
}

TEST_F(MembershipTest, ADeadIncarnationIsFollowedByANewOneAndNeverComesBack) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  Lose(1);
  ASSERT_TRUE(Attach("w0", "b", 2).ok());
  Lose(2);
  EXPECT_EQ(Attach("w0", "a", 3).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Attach("w0", "b", 4).ok());
}

TEST_F(MembershipTest, TheSameIncarnationReplacesItsOwnStreamAndLosesItsHold) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  const auto attached = Attach("w0", "a", 2).value();
  ASSERT_TRUE(attached.loss.has_value());
  EXPECT_EQ(attached.loss->session, SessionId(1));
  EXPECT_EQ(attached.loss->hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_FALSE(Detach(1).has_value());  // the late end of the old stream
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(MembershipTest, AReplacedStreamKeepsAHoldThatTheWorkerConfirms) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  control::Hello hello = HelloOf("w0", "a");
  hello.running = {.key = HoldOf("j").key, .rank = HoldOf("j").rank};
  const auto attached = members_.Attach(hello, SessionId(2), Moment::Of(clock_)).value();
  EXPECT_EQ(attached.replaced, SessionId(1));
  EXPECT_FALSE(attached.loss.has_value());
  EXPECT_EQ(members_.Find("w0")->hold, HoldOf("j"));
}

TEST_F(MembershipTest, AWorkerFromBeforeTheFloorIsRefusedWithBothVersionsAndARemedy) {
  control::Hello hello = HelloOf("w0", "a");
  hello.host = "node-7";
  hello.protocol_version = kOldestProtocolVersion - 1;
  const absl::Status status = members_.Attach(hello, SessionId(1), Moment::Of(clock_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("worker w0 speaks protocol version ", kOldestProtocolVersion - 1,
                         ", this coordinator speaks version ", kProtocolVersion,
                         " and accepts versions from ", kOldestProtocolVersion,
                         "; upgrade takt-worker on host node-7 and start it again"));
}

TEST_F(MembershipTest, AWorkerNewerThanTheCoordinatorIsRefused) {
  control::Hello hello = HelloOf("w0", "a");
  hello.protocol_version = kProtocolVersion + 1;
  const absl::Status status = members_.Attach(hello, SessionId(1), Moment::Of(clock_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("upgrade the coordinator"));
}

TEST_F(MembershipTest, EveryVersionFromTheFloorIsAccepted) {
  for (int version = kOldestProtocolVersion; version <= kProtocolVersion; ++version) {
    EXPECT_TRUE(CheckProtocol({.protocol_version = version}).ok());
  }
}

TEST_F(MembershipTest, NamelessWorkersAreRefusedNamingTheField) {
  EXPECT_THAT(Attach("", "a", 1).status().ToString(), HasSubstr("hello.worker"));
  EXPECT_THAT(Attach("w0", "", 1).status().ToString(), HasSubstr("hello.incarnation"));
}

TEST_F(MembershipTest, DrainedNamesOfTheStoreStayDrainedWhenTheyAttach) {
  EXPECT_EQ(StateOf("old"), WorkerState::kLost);
  ASSERT_TRUE(Attach("old", "a", 1).ok());
  EXPECT_TRUE(members_.Find("old")->drained);
  ASSERT_TRUE(members_.SetDrained("old", false).ok());
  EXPECT_FALSE(members_.Find("old")->drained);
  EXPECT_EQ(members_.SetDrained("nobody", true).code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, LongLostWorkersAreForgottenUnlessDrained) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  Lose(1);
  clock_.Advance(absl::Minutes(59));
  Expire();
  EXPECT_NE(members_.Find("w0"), nullptr);
  clock_.Advance(absl::Minutes(2));
  Expire();
  EXPECT_EQ(members_.Find("w0"), nullptr);
  EXPECT_NE(members_.Find("old"), nullptr);
}

TEST_F(MembershipTest, ASilentWorkerIsAwayForAsLongAsOtherRanksGetFurther) {
  for (const int session : {1, 2, 3})
    ASSERT_TRUE(Attach(absl::StrCat("w", session - 1), "a", session).ok());
  members_.SetHold("w0", HoldOf("j"));
  const auto hear_others = [&] {
    for (const int session : {2, 3}) members_.Heard(SessionId(session), Moment::Of(clock_));
  };
  Voucher voucher;
  for (int second = 1; second <= 60; ++second) {
    clock_.Advance(absl::Seconds(1));
    hear_others();
    voucher.progress = Moment::Of(clock_).steady - absl::Milliseconds(500);
    EXPECT_THAT(Expire(voucher), SizeIs(second == 5 ? 1 : 0));  // away, once
  }
  EXPECT_EQ(StateOf("w0"), WorkerState::kAway);
  EXPECT_EQ(members_.Find("w0")->hold, HoldOf("j"));
  // A pause of a lease ends that.
  clock_.Advance(timeouts::kLease - absl::Seconds(1));
  hear_others();
  EXPECT_THAT(Expire(voucher), IsEmpty());
  clock_.Advance(absl::Seconds(1));
  hear_others();
  const auto losses = Expire(voucher);
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_FALSE(losses[0].away);
  EXPECT_EQ(losses[0].reason, "nothing heard from it for 1m5s");
  EXPECT_EQ(losses[0].session, SessionId(1));
}

TEST_F(MembershipTest, ASilentWorkerThatIsHeardAgainHasItsRankStill) {
  for (const int session : {1, 2, 3})
    ASSERT_TRUE(Attach(absl::StrCat("w", session - 1), "a", session).ok());
  members_.SetHold("w0", HoldOf("j"));
  clock_.Advance(timeouts::kLease);
  for (const int session : {2, 3}) members_.Heard(SessionId(session), Moment::Of(clock_));
  ASSERT_THAT(Expire({.progress = Moment::Of(clock_).steady}), SizeIs(1));
  ASSERT_EQ(StateOf("w0"), WorkerState::kAway);
  EXPECT_TRUE(members_.Heard(SessionId(1), Moment::Of(clock_)));
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  EXPECT_FALSE(members_.Heard(SessionId(1), Moment::Of(clock_)));
  EXPECT_THAT(Expire(), IsEmpty());
}

// The last thing that its neighbours did may come a moment after a worker's death.
TEST_F(MembershipTest, WhatOtherRanksDidJustAfterADeathProvesNothing) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  ASSERT_TRUE(Attach("w1", "a", 2).ok());
  Detach(1);
  const Voucher voucher{.progress = Moment::Of(clock_).steady + absl::Milliseconds(100)};
  clock_.Advance(timeouts::kRedial);
  EXPECT_THAT(Expire(voucher), IsEmpty());
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_THAT(Expire(voucher), SizeIs(1));
}

TEST_F(MembershipTest, ALongStepGivesOtherRanksMoreTimeToGetFurther) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  ASSERT_TRUE(Attach("w1", "a", 2).ok());
  Detach(1);
  const absl::Duration ended = Moment::Of(clock_).steady;
  clock_.Advance(absl::Seconds(3));
  HearAll(2);
  EXPECT_THAT(Expire({.progress = ended, .step = absl::Seconds(4)}), IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(Expire({.progress = ended, .step = absl::Seconds(4)}), SizeIs(1));
}

TEST_F(MembershipTest, WhenMostWorkersFallSilentAtOnceNobodyIsLost) {
  for (int session = 1; session <= 4; ++session)
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", session).ok());
  int away = 0;
  // Nothing is heard of anybody for an hour: the coordinator is cut off.
  for (int second = 0; second < 3600; ++second) {
    clock_.Advance(absl::Seconds(1));
    for (const Loss& loss : Expire()) {
      EXPECT_TRUE(loss.away);
      ++away;
    }
  }
  EXPECT_EQ(away, 4);
  // Three come back on their streams, and the fourth has as long as after a restart.
  for (const int session : {1, 2, 3}) members_.Heard(SessionId(session), Moment::Of(clock_));
  EXPECT_THAT(Expire(), IsEmpty());
  for (int second = 1; second <= 15; ++second) {
    EXPECT_EQ(StateOf("w4"), WorkerState::kAway);
    clock_.Advance(absl::Seconds(1));
    for (const int session : {1, 2, 3}) members_.Heard(SessionId(session), Moment::Of(clock_));
    EXPECT_THAT(Expire(), SizeIs(second == 15 ? 1 : 0));
  }
  EXPECT_EQ(StateOf("w4"), WorkerState::kLost);
}

TEST_F(MembershipTest, WhileSomeWorkersAreHeardTheMajorityIsNotWaitedForForEver) {
  for (int session = 1; session <= 4; ++session)
    ASSERT_TRUE(Attach(absl::StrCat("w", session), "a", session).ok());
  for (int second = 1; second < 33; ++second) {
    clock_.Advance(absl::Seconds(1));
    members_.Heard(SessionId(1), Moment::Of(clock_));
    Expire();
    EXPECT_EQ(StateOf("w2"), second < 5 ? WorkerState::kIdle : WorkerState::kAway);
  }
  clock_.Advance(absl::Seconds(1));
  members_.Heard(SessionId(1), Moment::Of(clock_));
  EXPECT_THAT(Expire(), SizeIs(3));
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  EXPECT_EQ(StateOf("w2"), WorkerState::kLost);
}

TEST_F(MembershipTest, AfterAStallAStreamThatEndsIsWaitedForAsAfterARestart) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  ASSERT_TRUE(Attach("w1", "a", 2).ok());
  clock_.Advance(absl::Seconds(30));
  members_.RenewLeases(Moment::Of(clock_), timeouts::kReturnGrace);
  EXPECT_THAT(Expire(), IsEmpty());
  Detach(1);
  clock_.Advance(timeouts::kReturnGrace - absl::Milliseconds(1));
  HearAll(2);
  EXPECT_THAT(Expire(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(Expire(), SizeIs(1));
}

TEST_F(MembershipTest, AWorkerThatHeldARankBeforeARestartIsAwayUntilItAttaches) {
  members_.Expect("w0", "a", HoldOf("j"), Moment::Of(clock_));
  members_.Expect("w1", "a", HoldOf("j"), Moment::Of(clock_));
  EXPECT_EQ(StateOf("w0"), WorkerState::kAway);
  control::Hello hello = HelloOf("w0", "a");
  hello.running = {.key = HoldOf("j").key, .rank = HoldOf("j").rank};
  EXPECT_FALSE(members_.Attach(hello, SessionId(1), Moment::Of(clock_))->loss.has_value());
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  clock_.Advance(timeouts::kReturnGrace);
  HearAll(1);
  const auto losses = Expire();
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_EQ(losses[0].reason, "not heard of since the coordinator was started");
  EXPECT_EQ(losses[0].hold, HoldOf("j"));
}

control::Hello OnGpu(const std::string& worker, const std::string& uuid, bool shared = false) {
  return {.worker = worker,
          .incarnation = worker,
          .protocol_version = kProtocolVersion,
          .host = "node-of-" + worker,
          .device = Device{.name = "NVIDIA H200", .uuid = uuid, .shared = shared}};
}

TEST_F(MembershipTest, ASecondWorkerOnAGpuIsRefusedAndBothAreNamed) {
  ASSERT_TRUE(members_.Attach(OnGpu("w0", "GPU-1"), SessionId(1), Moment::Of(clock_)).ok());
  EXPECT_TRUE(members_.Attach(OnGpu("w1", "GPU-2"), SessionId(2), Moment::Of(clock_)).ok());
  for (const bool shared : {false, true}) {
    const absl::Status status =
        members_.Attach(OnGpu("w2", "GPU-1", shared), SessionId(3), Moment::Of(clock_)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_EQ(status.message(),
              "worker w2 on node-of-w2 computes on the same GPU as worker w0 on node-of-w0: NVIDIA "
              "H200, GPU-1; start w2 with --device cuda:N of another one, or both with "
              "--share-device");
  }
  Detach(1);
  EXPECT_FALSE(members_.Attach(OnGpu("w2", "GPU-1"), SessionId(3), Moment::Of(clock_)).ok());
  clock_.Advance(timeouts::kRedial);
  Expire();
  EXPECT_TRUE(members_.Attach(OnGpu("w2", "GPU-1"), SessionId(3), Moment::Of(clock_)).ok());
}

TEST_F(MembershipTest, AGpuIsSharedByThoseThatAllSaySo) {
  ASSERT_TRUE(members_.Attach(OnGpu("w0", "GPU-1", true), SessionId(1), Moment::Of(clock_)).ok());
  EXPECT_TRUE(members_.Attach(OnGpu("w1", "GPU-1", true), SessionId(2), Moment::Of(clock_)).ok());
  EXPECT_FALSE(members_.Attach(OnGpu("w2", "GPU-1"), SessionId(3), Moment::Of(clock_)).ok());
}

}  // namespace
}  // namespace takt::membership
