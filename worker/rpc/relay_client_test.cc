// SPDX-License-Identifier: Apache-2.0
// Tests a worker that has a relay. Two coordinators of this process play the relay and the
// coordinator that the worker dials without it.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rpc/attachment_client.h"
#include "worker/rpc/coordinator_channels.h"
#include "worker/rpc/fake_coordinator.h"

namespace takt::worker_rpc {
namespace {

class RelayClientTest : public testing::Test {
 protected:
  void StartWorker() {
    agent_ = std::make_unique<session::Agent>(session::AgentOptions{
        .runner_factory = [](control::Assignment) { return nullptr; },
        .commit = [](const control::CommitCheckpoint&) { return absl::OkStatus(); }});
    channels_ =
        CoordinatorChannels::Create({.coordinator = direct_.address(), .relay = relay_.address()})
            .value();
    client_ = std::make_unique<AttachmentClient>(
        AttachmentOptions{.channels = channels_.get(),
                          .hello = {.worker = "n1-0", .incarnation = "life-1", .cores = 2},
                          .ask_relay = [this] { return AskRelay(); },
                          .ask_relay_every = absl::Milliseconds(10)},
        *agent_);
    thread_ = std::thread([this] { agent_->Run(*client_); });
  }
  void TearDown() override {
    if (agent_ == nullptr) return;
    agent_->Leave();
    agent_->Leave();  // does not wait for the coordinator
    thread_.join();
    client_.reset();
  }
  absl::Status AskRelay() {
    if (!is_ready_) return absl::UnavailableError("not ready");
    ++times_asked_;
    return absl::OkStatus();
  }
  static std::string AwaitHello(FakeCoordinator& coordinator) {
    return coordinator
        .AwaitControl([](const v1::AttachRequest& request) { return request.has_hello(); })
        .hello()
        .worker();
  }
  bool Becomes(bool through_relay) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!client_->attachment().ok() || channels_->through_relay() != through_relay) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

  FakeCoordinator relay_, direct_;
  std::atomic<bool> is_ready_ = false;
  std::atomic<int> times_asked_ = 0;  // while it was ready
  std::unique_ptr<session::Agent> agent_;
  std::unique_ptr<CoordinatorChannels> channels_;
  std::unique_ptr<AttachmentClient> client_;
  std::thread thread_;
};

TEST_F(RelayClientTest, DialsTheCoordinatorWhenTheRelayDiesAndGoesBackWhenItIsReady) {
  StartWorker();
  EXPECT_EQ(AwaitHello(relay_), "n1-0");
  ASSERT_TRUE(Becomes(/*through_relay=*/true));
  relay_.Stop();
  EXPECT_EQ(AwaitHello(direct_), "n1-0");
  ASSERT_TRUE(Becomes(/*through_relay=*/false));
  EXPECT_EQ(direct_.AwaitBulk(1).size(), 1u) << "and its bulk stream follows";

  relay_.Clear();
  relay_.Start();
  is_ready_ = true;
  EXPECT_EQ(AwaitHello(relay_), "n1-0");
  EXPECT_TRUE(Becomes(/*through_relay=*/true));
  EXPECT_EQ(relay_.AwaitBulk(1).size(), 1u);
}

// Its job would lose the control stream each time that it went back.
TEST_F(RelayClientTest, StaysAwayFromARelayThatMayNotSpeakForIt) {
  relay_.AnswerHello(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "may not speak for n1-0"));
  StartWorker();
  EXPECT_EQ(AwaitHello(direct_), "n1-0");
  ASSERT_TRUE(Becomes(/*through_relay=*/false));
  relay_.AnswerHello(grpc::Status::OK);
  is_ready_ = true;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (times_asked_ < 3) {
    ASSERT_LT(absl::Now(), deadline) << "it went back";
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_TRUE(client_->attachment().ok());
  EXPECT_FALSE(channels_->through_relay());
}

TEST_F(RelayClientTest, StartsWithoutARelayThatIsNotThere) {
  relay_.Stop();
  StartWorker();
  EXPECT_EQ(AwaitHello(direct_), "n1-0");
  EXPECT_TRUE(Becomes(/*through_relay=*/false));
}

}  // namespace
}  // namespace takt::worker_rpc
