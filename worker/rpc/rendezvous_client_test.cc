// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/rendezvous_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"
#include "worker/transport/abort_signal.h"

namespace takt::worker_rpc {
namespace {

using ::testing::HasSubstr;

// Keeps the keys of one scope, whose generation must be 3.
class FakeRendezvous final : public v1::RendezvousService::Service {
 public:
  grpc::Status SetKey(grpc::ServerContext*, const v1::SetKeyRequest* request,
                      v1::SetKeyResponse*) override {
    if (request->scope().generation() != 3)
      return grpc::Status(grpc::StatusCode::ABORTED, "generation 3 is current");
    absl::MutexLock lock(&mutex_);
    if (failures_ > 0) {
      --failures_;
      return failure_;
    }
    values_[request->key()] = request->value();
    return grpc::Status::OK;
  }
  grpc::Status WaitKeys(grpc::ServerContext* context, const v1::WaitKeysRequest* request,
                        v1::WaitKeysResponse* response) override {
    if (request->keys(0) == "nothing") return grpc::Status::OK;  // but no value
    {
      absl::MutexLock lock(&mutex_);
      if (ended_waits_ > 0) {
        --ended_waits_;
        return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "key did not come");
      }
    }
    if (request->keys_size() > 64)
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many keys");
    absl::MutexLock lock(&mutex_);
    ++waiting_;
    const auto has = [&](const std::string& key) { return values_.contains(key); };
    const auto has_all = [&] {
      return std::all_of(request->keys().begin(), request->keys().end(), has);
    };
    const auto there = [&] { return has_all() || context->IsCancelled(); };
    const absl::Time deadline = absl::Now() + absl::Seconds(request->timeout_seconds());
    // A cancellation wakes no condition, so the wait looks for one regularly.
    while (!there() && absl::Now() < deadline) {
      mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Milliseconds(10));
    }
    if (!has_all()) return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no such key");
    for (const std::string& key : request->keys()) response->add_values(values_[key]);
    return grpc::Status::OK;
  }
  int waits() {
    absl::MutexLock lock(&mutex_);
    return waiting_;
  }
  void FailSets(int n, grpc::Status failure) {
    absl::MutexLock lock(&mutex_);
    failures_ = n;
    failure_ = std::move(failure);
  }
  // The next waits end as if they had taken as long as they may.
  void EndWaits(int n) {
    absl::MutexLock lock(&mutex_);
    ended_waits_ = n;
  }
  void AwaitWaiter() {
    absl::MutexLock lock(&mutex_);
    const auto some = [this] { return waiting_ > 0; };
    mutex_.Await(absl::Condition(&some));
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> values_;
  int failures_ = 0;
  grpc::Status failure_;
  int waiting_ = 0, ended_waits_ = 0;
};

class RendezvousClientTest : public testing::Test {
 protected:
  RendezvousClientTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }
  std::unique_ptr<session::AbortableRendezvous> Client(std::int64_t generation) {
    return CreateRendezvousClient([channel = channel_] { return channel; },
                                  {"kjv", Generation(generation)});
  }

  FakeRendezvous service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RendezvousClientTest, WaitGetsWhatAnotherRankSets) {
  const auto client = Client(3);
  std::thread setter([&] {
    service_.AwaitWaiter();
    EXPECT_TRUE(Client(3)->Set("rank/1", "127.0.0.1:5").ok());
  });
  EXPECT_EQ(client->Wait("rank/1", absl::Seconds(20)).value_or("none"), "127.0.0.1:5");
  setter.join();
}

TEST_F(RendezvousClientTest, ManyKeysAreWaitedForInFewCalls) {
  const auto client = Client(3);
  std::vector<std::string> keys, values;
  for (int i = 0; i < 130; ++i) {
    keys.push_back("rank/" + std::to_string(i));
    values.push_back(std::to_string(2 * i));
    ASSERT_TRUE(client->Set(keys.back(), values.back()).ok());
  }
  const auto waited = client->WaitAll(keys, absl::Seconds(20));
  ASSERT_TRUE(waited.ok()) << waited.status();
  EXPECT_EQ(*waited, values);
  EXPECT_EQ(service_.waits(), 3);
  EXPECT_TRUE(client->WaitAll({}, absl::Seconds(20)).ok());
}

TEST_F(RendezvousClientTest, AWaitForManyKeysNamesTheFirstAndCountsTheOthers) {
  const auto waited = Client(3)->WaitAll({"rank/1", "rank/2"}, absl::Milliseconds(50));
  EXPECT_EQ(waited.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(waited.status().message(), HasSubstr("rank/1 and 1 other"));
}

TEST_F(RendezvousClientTest, WaitEndsAtItsTimeoutNamingTheKey) {
  const auto value = Client(3)->Wait("rank/1", absl::Milliseconds(50));
  EXPECT_EQ(value.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(value.status().message(), HasSubstr("rank/1"));
}

TEST_F(RendezvousClientTest, AnAnswerWithoutTheValueIsAnError) {
  const auto value = Client(3)->Wait("nothing", absl::Seconds(20));
  EXPECT_EQ(value.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(value.status().message(), HasSubstr("0 values for nothing"));
}

TEST_F(RendezvousClientTest, AbortEndsAWaitAndEveryLaterCall) {
  const auto client = Client(3);
  std::thread aborter([&] {
    service_.AwaitWaiter();
    client->Abort();
  });
  EXPECT_EQ(client->Wait("rank/1", absl::Hours(1)).status().code(), absl::StatusCode::kAborted);
  aborter.join();
  EXPECT_EQ(client->Set("rank/1", "x").code(), absl::StatusCode::kAborted);
}

TEST_F(RendezvousClientTest, AnAbortedTransportEndsItsOwnWaitsOnly) {
  const auto client = Client(3);
  transport::AbortSignal abort;
  std::thread aborter([&] {
    service_.AwaitWaiter();
    abort.Raise();
  });
  EXPECT_EQ(client->WaitAllUnless(abort, {"rank/1"}, absl::Hours(1)).status().code(),
            absl::StatusCode::kAborted);
  aborter.join();
  EXPECT_TRUE(client->Set("rank/1", "x").ok());
  EXPECT_EQ(client->Wait("rank/1", absl::Seconds(20)).value_or("none"), "x");
  EXPECT_EQ(client->WaitAllUnless(abort, {"rank/1"}, absl::Hours(1)).status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(RendezvousClientTest, AnOldGenerationIsRefused) {
  EXPECT_EQ(Client(2)->Set("rank/1", "x").code(), absl::StatusCode::kAborted);
}

TEST_F(RendezvousClientTest, AShortAbsenceOfTheCoordinatorIsSatOut) {
  service_.FailSets(2, {grpc::StatusCode::UNAVAILABLE, "restarting"});
  EXPECT_TRUE(Client(3)->Set("rank/1", "x").ok());
}

// A rank may wait an hour for others that load.
TEST_F(RendezvousClientTest, AWaitIsLongerThanTheServiceAllows) {
  const auto client = Client(3);
  EXPECT_TRUE(client->Set("rank/1", "x").ok());
  service_.EndWaits(2);
  EXPECT_EQ(client->Wait("rank/1", absl::Seconds(20)).value_or("none"), "x");
  service_.EndWaits(2);
  EXPECT_EQ(client->WaitAll({"rank/1"}, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

// All ranks of a host may count as one caller of the coordinator.
TEST_F(RendezvousClientTest, ACallThatCameTooSoonIsMadeAgain) {
  service_.FailSets(1, {grpc::StatusCode::RESOURCE_EXHAUSTED, "slow down"});
  EXPECT_TRUE(Client(3)->Set("rank/1", "x").ok());
}

}  // namespace
}  // namespace takt::worker_rpc
