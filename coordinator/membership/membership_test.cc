// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
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
  std::vector<Loss> Expire() { return members_.Expire(Moment::Of(clock_)); }
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
  members_.Release("w0");
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(MembershipTest, AnEndedStreamLosesTheWorkerWithItsHold) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  const auto loss = members_.Detach(SessionId(1), "its stream ended");
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->worker, "w0");
  EXPECT_EQ(loss->hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kLost);
  EXPECT_FALSE(members_.Find("w0")->hold.has_value());
  EXPECT_FALSE(members_.Detach(SessionId(1), "again").has_value());
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
  members_.Detach(SessionId(1), "gone");
  ASSERT_TRUE(Attach("w0", "b", 2).ok());
  members_.Detach(SessionId(2), "gone");
  EXPECT_EQ(Attach("w0", "a", 3).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Attach("w0", "b", 4).ok());
}

TEST_F(MembershipTest, TheSameIncarnationReplacesItsOwnStreamAndLosesItsHold) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  const auto attached = Attach("w0", "a", 2).value();
  ASSERT_TRUE(attached.replaced.has_value());
  EXPECT_EQ(attached.replaced->session, SessionId(1));
  EXPECT_EQ(attached.replaced->hold, HoldOf("j"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_FALSE(members_.Detach(SessionId(1), "late end of the old stream").has_value());
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(MembershipTest, AReplacedStreamKeepsAHoldThatTheWorkerConfirms) {
  ASSERT_TRUE(Attach("w0", "a", 1).ok());
  members_.SetHold("w0", HoldOf("j"));
  control::Hello hello = HelloOf("w0", "a");
  hello.running = {.key = HoldOf("j").key, .rank = HoldOf("j").rank};
  const auto attached = members_.Attach(hello, SessionId(2), Moment::Of(clock_)).value();
  EXPECT_FALSE(attached.replaced->hold.has_value());
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
  members_.Detach(SessionId(1), "gone");
  clock_.Advance(absl::Minutes(59));
  Expire();
  EXPECT_NE(members_.Find("w0"), nullptr);
  clock_.Advance(absl::Minutes(2));
  Expire();
  EXPECT_EQ(members_.Find("w0"), nullptr);
  EXPECT_NE(members_.Find("old"), nullptr);
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
  ASSERT_TRUE(members_.Detach(SessionId(1), "its stream ended").has_value());
  EXPECT_TRUE(members_.Attach(OnGpu("w2", "GPU-1"), SessionId(3), Moment::Of(clock_)).ok());
}

TEST_F(MembershipTest, AGpuIsSharedByThoseThatAllSaySo) {
  ASSERT_TRUE(members_.Attach(OnGpu("w0", "GPU-1", true), SessionId(1), Moment::Of(clock_)).ok());
  EXPECT_TRUE(members_.Attach(OnGpu("w1", "GPU-1", true), SessionId(2), Moment::Of(clock_)).ok());
  EXPECT_FALSE(members_.Attach(OnGpu("w2", "GPU-1"), SessionId(3), Moment::Of(clock_)).ok());
}

}  // namespace
}  // namespace takt::membership
