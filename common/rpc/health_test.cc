// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/health.h"

#include <grpcpp/health_check_service_interface.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::health {
namespace {

using ::testing::HasSubstr;

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() {
    std::string name = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
    TAKT_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
  }
  ~HealthTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Server> Serve(std::map<std::string, Check> checks) {
    auto server = Server::Start(socket(), std::move(checks));
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }
  std::string socket() const { return directory_ + "/health.sock"; }

 private:
  std::string directory_;
};

TEST_F(HealthTest, EachServiceHasItsOwnAnswer) {
  const auto server = Serve({{"live", [] { return absl::OkStatus(); }},
                             {"ready", [] { return absl::UnavailableError("not attached"); }}});
  EXPECT_TRUE(Ask(socket(), "live").ok());
  const absl::Status ready = Ask(socket(), "ready");
  EXPECT_EQ(ready.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ready.message(), "not attached");
  EXPECT_EQ(Ask(socket(), "tired").code(), absl::StatusCode::kNotFound);
}

TEST_F(HealthTest, AnswersAreOfTheMoment) {
  std::atomic<bool> attached = false;
  const auto server = Serve(
      {{"ready", [&] { return attached ? absl::OkStatus() : absl::UnavailableError("no"); }}});
  EXPECT_FALSE(Ask(socket(), "ready").ok());
  attached = true;
  EXPECT_TRUE(Ask(socket(), "ready").ok());
}

// A coordinator also serves gRPC's default health service, on its own address.
TEST_F(HealthTest, TheDefaultServiceOfTheProcessDoesNotAnswerInItsPlace) {
  grpc::EnableDefaultHealthCheckService(true);
  const auto server = Serve({{"live", [] { return absl::InternalError("hangs"); }}});
  EXPECT_EQ(Ask(socket(), "live").message(), "hangs");
  grpc::EnableDefaultHealthCheckService(false);
}

TEST_F(HealthTest, NobodyThereIsSaidAtOnce) {
  const absl::Status status = Ask(socket(), "live");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nothing answers on " + socket()));
  EXPECT_EQ(Report("takt-worker", socket(), "live"), 1);
  EXPECT_EQ(Ask("", "live").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HealthTest, ASocketThatADeadProcessLeftIsReplaced) {
  Serve({}).reset();
  const auto first = Serve({});
  const auto second = Serve({{"live", [] { return absl::OkStatus(); }}});
  EXPECT_EQ(Report("takt-worker", socket(), "live"), 0);
}

TEST_F(HealthTest, ASocketThatCannotBeIsAnError) {
  const auto nowhere = Server::Start("/nonexistent/health.sock", {});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kUnavailable);
  const auto too_long = Server::Start("/tmp/" + std::string(108, 'x'), {});
  ASSERT_EQ(FieldErrorsOf(too_long.status()).size(), 1);
  EXPECT_EQ(FieldErrorsOf(too_long.status())[0].field, "--health-socket");
}

TEST(AnswersTest, AThreadThatAnswersIsWell) {
  std::vector<std::thread> threads;
  const Check check = Answers([&](std::function<void()> answer) {
    threads.emplace_back(std::move(answer));  // later, elsewhere
  });
  EXPECT_TRUE(check().ok());
  EXPECT_TRUE(check().ok());
  EXPECT_EQ(threads.size(), 2);
  for (std::thread& thread : threads) thread.join();
}

TEST(AnswersTest, AThreadThatHangsIsAskedOnceAndMayComeBack) {
  std::vector<std::function<void()>> asked;
  const Check check =
      Answers([&](std::function<void()> answer) { asked.push_back(std::move(answer)); },
              absl::Milliseconds(1));
  EXPECT_THAT(check().message(), HasSubstr("does not answer within 1ms"));
  EXPECT_FALSE(check().ok());
  ASSERT_EQ(asked.size(), 1);
  asked[0]();
  EXPECT_FALSE(check().ok());  // asks again
  EXPECT_EQ(asked.size(), 2);
}

}  // namespace
}  // namespace takt::health
