// SPDX-License-Identifier: Apache-2.0
// Tests the relay of a host between workers and a coordinator of this process, over real sockets.
#include "worker/rpc/relay.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"
#include "worker/rpc/fake_hosts.h"

namespace takt::worker_rpc {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<grpc::ClientContext> NewContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context->set_wait_for_ready(true);
  return context;
}

// A worker's control stream to the relay.
class Worker {
 public:
  Worker(const std::shared_ptr<grpc::Channel>& channel, const std::string& name)
      : stub_(v1::AttachmentService::NewStub(channel)),
        context_(NewContext()),
        stream_(stub_->Attach(context_.get())) {
    v1::AttachRequest request;
    request.mutable_hello()->set_worker(name);
    stream_->Write(request);  // the relay may have ended the stream already
  }
  ~Worker() { Die(); }

  v1::AttachResponse Read() {
    v1::AttachResponse response;
    EXPECT_TRUE(stream_->Read(&response)) << "the control stream ended";
    return response;
  }
  // Waits for the end of the stream.
  absl::Status End() {
    v1::AttachResponse response;
    while (stream_->Read(&response)) {
    }
    const absl::Status status = FromGrpc(stream_->Finish(), *context_);
    stream_.reset();
    return status;
  }
  void Die() {
    if (stream_ == nullptr) return;
    context_->TryCancel();
    stream_->Finish().ok();
    stream_.reset();
  }

 private:
  const std::unique_ptr<v1::AttachmentService::Stub> stub_;
  const std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream_;
};

std::string Welcome(const std::string& cluster_id) {
  v1::AttachResponse response;
  response.mutable_welcome()->set_cluster_id(cluster_id);
  return response.SerializeAsString();
}

class RelayTest : public testing::Test {
 protected:
  void StartRelay(const std::string& coordinator, absl::Duration patience = absl::Seconds(60)) {
    const ChannelOptions dialled{.coordinator = coordinator,
                                 .insecure = !coordinator.starts_with("unix:")};
    channels_ = CoordinatorChannels::Create(dialled).value();
    const std::string listen = "unix:" + hosts_.directory() + "/relay";
    relay_ = Relay::Start({.listen = listen,
                           .channels = channels_.get(),
                           .patience = patience,
                           .refused_backoff = absl::Milliseconds(10)})
                 .value();
    channel_ = grpc::CreateChannel(listen, grpc::InsecureChannelCredentials());
  }
  void StartBoth() {
    hosts_.Start();
    StartRelay(hosts_.address());
  }

  void AwaitAttached() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!relay_->attachment().ok()) {
      ASSERT_LT(absl::Now(), deadline) << relay_->attachment();
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  FakeHosts hosts_;
  std::unique_ptr<CoordinatorChannels> channels_;
  std::unique_ptr<Relay> relay_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RelayTest, GivesEachWorkerAStreamOfItsOwn) {
  StartBoth();
  Worker w0(channel_, "w0"), w1(channel_, "w1");
  const std::int64_t first = hosts_.AwaitHello("w0"), second = hosts_.AwaitHello("w1");
  ASSERT_NE(first, 0);
  ASSERT_NE(second, 0);
  EXPECT_NE(first, second);
  v1::HostFrame frame = FrameOf(first, Welcome("of w0"));
  *frame.add_parts() = FrameOf(second, Welcome("of w1")).parts(0);
  hosts_.Say(frame);
  EXPECT_EQ(w1.Read().welcome().cluster_id(), "of w1");
  EXPECT_EQ(w0.Read().welcome().cluster_id(), "of w0");
  EXPECT_TRUE(relay_->attachment().ok());
  EXPECT_EQ(relay_->counts().workers, 2);
  EXPECT_GE(relay_->counts().messages, 2);

  w0.Die();
  EXPECT_TRUE(hosts_.AwaitEnd(first)) << "the coordinator is told at once";
  hosts_.Say(FrameOf(second, Welcome("still there")));
  EXPECT_EQ(w1.Read().welcome().cluster_id(), "still there");
}

// The coordinator would end the streams of all workers of the host.
TEST_F(RelayTest, EndsTheStreamThatIsOneTooMany) {
  StartBoth();
  constexpr auto kMost = static_cast<std::int64_t>(kMaxHostStreams);
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::int64_t i = 0; i < kMost; ++i)
    workers.push_back(std::make_unique<Worker>(channel_, "w0"));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (relay_->counts().workers < kMost) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(2));
  }
  const absl::Status status = Worker(channel_, "w1").End();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(relay_->counts().workers, kMost);
  EXPECT_TRUE(relay_->attachment().ok());
}

TEST_F(RelayTest, HasOneConnectionForEverything) {
  hosts_.Start();
  StartRelay(hosts_.tcp_address());
  Worker worker(channel_, "w0");
  ASSERT_NE(hosts_.AwaitHello("w0"), 0);
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto bulk = stub->StreamBulk(context.get());
  v1::StreamBulkRequest hello;
  hello.mutable_hello()->set_worker("w0");
  ASSERT_TRUE(bulk->Write(hello));
  EXPECT_NE(hosts_.AwaitBulkHello("w0"), 0);
  EXPECT_THAT(hosts_.ControlPeer(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(hosts_.BulkPeer(), hosts_.ControlPeer());
  context->TryCancel();
  bulk->Finish().ok();
}

TEST_F(RelayTest, PassesOnHowTheCoordinatorEndsAStream) {
  StartBoth();
  Worker refused(channel_, "w0"), other(channel_, "w1");
  const std::int64_t stream = hosts_.AwaitHello("w0");
  hosts_.Say(EndFrame(stream, UnusableField({.field = "certificate",
                                             .value = "host/n",
                                             .rule = "may not speak for worker w0",
                                             .fix = "rename it"})));
  const absl::Status status = refused.End();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  ASSERT_EQ(FieldErrorsOf(status).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(status)[0].fix, "rename it");
  EXPECT_TRUE(hosts_.AwaitEnd(stream)) << "so that the number is over";
  EXPECT_NE(hosts_.AwaitHello("w1"), 0);
}

// Otherwise the workers of all hosts would dial the coordinator when it starts again.
TEST_F(RelayTest, WorkersWaitForACoordinatorThatIsAwayAndSayHelloAgain) {
  StartRelay(hosts_.address());
  Worker early(channel_, "w0");
  hosts_.Start();
  ASSERT_NE(hosts_.AwaitHello("w0"), 0);
  hosts_.Stop();
  EXPECT_TRUE(early.End().ok()) << "it should dial the relay again";
  EXPECT_FALSE(relay_->attachment().ok());
  Worker again(channel_, "w0");
  hosts_.Start();
  const std::int64_t stream = hosts_.AwaitHello("w0");
  ASSERT_NE(stream, 0);
  hosts_.Say(FrameOf(stream, Welcome("of another life")));
  EXPECT_EQ(again.Read().welcome().cluster_id(), "of another life");
}

TEST_F(RelayTest, WorkersAreSentAwayOnceTheCoordinatorWasAwayForLong) {
  StartRelay(hosts_.address(), /*patience=*/absl::ZeroDuration());
  Worker worker(channel_, "w0");
  const absl::Status status = worker.End();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("the relay of this host has no coordinator"));
}

TEST_F(RelayTest, WorkersAreSentAwayFromARelayThatIsRefused) {
  hosts_.Refuse(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "an older program"));
  StartBoth();
  Worker worker(channel_, "w0");
  EXPECT_THAT(worker.End().message(), HasSubstr("an older program"));
  hosts_.Refuse(grpc::Status::OK);
  AwaitAttached();  // it asks again
  Worker next(channel_, "w1");
  EXPECT_NE(hosts_.AwaitHello("w1"), 0);
}

TEST_F(RelayTest, RanksMeetThroughIt) {
  StartBoth();
  const auto stub = v1::RendezvousService::NewStub(channel_);
  v1::SetKeyRequest set;
  set.mutable_scope()->set_generation(3);
  set.set_value("v");
  v1::SetKeyResponse done;
  ASSERT_TRUE(stub->SetKey(NewContext().get(), set, &done).ok());
  v1::WaitKeysResponse values;
  ASSERT_TRUE(stub->WaitKeys(NewContext().get(), {}, &values).ok());
  EXPECT_THAT(values.values(), testing::ElementsAre("v"));
  set.mutable_scope()->set_generation(4);
  const grpc::Status refused = stub->SetKey(NewContext().get(), set, &done);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(refused.error_message(), "generation 3 is current");
}

TEST(Relay, ListensOnAUnixSocketAlone) {
  EXPECT_THAT(Relay::Start({.listen = "127.0.0.1:0"}).status().message(), HasSubstr("--listen"));
}

}  // namespace
}  // namespace takt::worker_rpc
