// SPDX-License-Identifier: Apache-2.0
// Tests that a peer that wants too much of something leaves enough of it to the others.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/plan/plan.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/rpc/rpc_harness.h"

namespace takt::coordinator_rpc {
namespace {

TEST_F(RpcTest, AWorkerThatSendsFasterThanItIsHeardFillsNoQueue) {
  options_.max_events = 100;
  Restart();
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto stream = stub->Attach(context.get());
  v1::AttachRequest hello, heartbeat;
  hello.mutable_hello()->set_worker("w0");
  hello.mutable_hello()->set_incarnation("a");
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  heartbeat.mutable_heartbeat();
  v1::AttachResponse welcome;
  ASSERT_TRUE(stream->Write(hello) && stream->Read(&welcome));

  const auto go_on = std::make_shared<absl::Notification>();
  coordinator_->Post([go_on](job::Cluster&, Moment) { go_on->WaitForNotification(); });
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(stream->Write(heartbeat));
  // The call is answered after the server was given all of that.
  v1::GetVersionResponse version;
  EXPECT_TRUE(cluster_->GetVersion(NewContext().get(), {}, &version).ok());
  EXPECT_TRUE(coordinator_->TryPost([](job::Cluster&, Moment) {}));
  go_on->Notify();
  context->TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(RpcTest, SubmissionsBeyondThoseThatMayWaitForAPlanAreRefused) {
  const auto go_on = std::make_shared<absl::Notification>();
  options_.make_plan = [go_on](const config::JobSpec& spec, const plan::PlanOptions& options) {
    go_on->WaitForNotification();
    return plan::MakePlan(spec, options);
  };
  options_.max_asked_plans = 3;
  Restart();
  constexpr int kSubmissions = 20;
  std::atomic<int> num_refused = 0;
  std::vector<std::future<absl::Status>> results;
  for (int i = 0; i < kSubmissions; ++i) {
    results.push_back(std::async(std::launch::async, [&, i] {
      const absl::Status status = Submit(Spec(absl::StrCat("j", i), 1)).status();
      // Three jobs wait, and perhaps one is planned already.
      if (!status.ok() && ++num_refused == kSubmissions - 4) go_on->Notify();
      return status;
    }));
  }
  int num_taken = 0;
  for (std::future<absl::Status>& result : results) {
    const absl::Status status = result.get();
    num_taken += status.ok() ? 1 : 0;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_GE(num_taken, 3);
  EXPECT_LE(num_taken, 4);
}

// Makes a call of reflection that asks once and stays.
class Reflection final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Reflection(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(channel), context_(NewContext()) {
    const grpc::Slice list_services("\x3a\x01*");
    said_ = grpc::ByteBuffer(&list_services, 1);
    stub_.PrepareBidiStreamingCall(
        context_.get(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {}, this);
    StartRead(&heard_);
    StartWrite(&said_);
    StartCall();
  }
  ~Reflection() override {
    context_->TryCancel();
    done_.WaitForNotification();
  }

  // Waits until the call was answered (OK) or has ended.
  grpc::StatusCode Result() {
    result_.WaitForNotification();
    return code_;
  }

  void OnReadDone(bool ok) override {
    if (ok) result_.Notify();
  }
  void OnDone(const grpc::Status& status) override {
    if (!result_.HasBeenNotified()) {
      code_ = status.error_code();
      result_.Notify();
    }
    done_.Notify();
  }

 private:
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer said_, heard_;
  grpc::StatusCode code_ = grpc::StatusCode::OK;
  absl::Notification result_, done_;
};

TEST_F(RpcTest, ReflectionTakesAFewThreadsAndNoMore) {
  std::vector<std::unique_ptr<Reflection>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(std::make_unique<Reflection>(channel_));
  int num_answered = 0;
  for (const auto& call : calls) {
    const grpc::StatusCode code = call->Result();
    num_answered += code == grpc::StatusCode::OK ? 1 : 0;
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_GT(num_answered, 0);
  EXPECT_LE(num_answered, 8);
  calls.clear();
  // Waits until the server has seen that they ended.
  while (Reflection(channel_).Result() != grpc::StatusCode::OK) {
  }
}

TEST(NetworkOf, IsTheAddressWithoutWhatAHostMayChoose) {
  EXPECT_EQ(NetworkOf("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
  EXPECT_EQ(NetworkOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711"), "ipv6:2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("ipv6:[2001:db8:1:2::7]:4711"), "ipv6:2001:db8:1:2::/64");
  EXPECT_NE(NetworkOf("ipv6:[::ffff:10.0.0.1]:4711"), NetworkOf("ipv6:[::ffff:10.0.0.2]:4711"));
}

}  // namespace
}  // namespace takt::coordinator_rpc
