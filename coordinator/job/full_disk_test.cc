// SPDX-License-Identifier: Apache-2.0
// Tests what a coordinator does while its store has no room.
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/notification.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::HasSubstr;

// While `full` is true it keeps only what deletes a job, as a store does that gives up its reserve.
class FullStore final : public store::Store {
 public:
  absl::StatusOr<store::Snapshot> Load() override { return store_->Load(); }
  absl::StatusOr<std::int64_t> RaiseEpoch() override { return store_->RaiseEpoch(); }
  absl::Status Commit(const store::Changes& changes) override {
    if (full && changes.deleted_jobs.empty())
      return absl::ResourceExhaustedError("state file /x cannot grow; make room");
    return store_->Commit(changes);
  }
  absl::StatusOr<std::vector<store::StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                           int limit) override {
    return store_->ReadSteps(job_id, after, limit);
  }
  absl::StatusOr<std::optional<store::RequestRecord>> FindRequest(
      const std::string& method, const std::string& request_id) override {
    return store_->FindRequest(method, request_id);
  }
  absl::StatusOr<std::vector<store::LogRecord>> ReadLogs(const std::string& job_id,
                                                         std::int64_t after, int limit) override {
    return store_->ReadLogs(job_id, after, limit);
  }
  absl::StatusOr<std::string> ReadProfile() override { return store_->ReadProfile(); }

  std::atomic<bool> full = false;

 private:
  const std::unique_ptr<store::Store> store_ = store::NewMemoryStore();
};

class FullDiskTest : public ::testing::Test {
 protected:
  FullDiskTest() {
    CoordinatorOptions options;
    options.make_plan = [](const config::JobSpec&,
                           const plan::PlanOptions&) -> absl::StatusOr<plan::Plan> {
      return absl::InternalError("no plan is asked for");
    };
    options.cluster.random_bytes = [this](int count) {
      return std::string(static_cast<std::size_t>(count), ++last_byte_);
    };
    // Only deletions try to store again, so that the test decides when there is room.
    options.retry_full_disk = absl::InfiniteDuration();
    coordinator_ = Coordinator::Start(options, &store_).value();
  }

  // Posts the request and waits for its answer.
  template <class T, class Request>
  absl::StatusOr<T> Ask(const Request& request) {
    absl::Notification answered;
    absl::StatusOr<T> result = absl::UnknownError("no answer");
    coordinator_->Post([&](Cluster& cluster, Moment now) {
      const Reply<T> reply = [&](absl::StatusOr<T> answer) {
        result = std::move(answer);
        answered.Notify();
      };
      request(cluster, reply, now);
    });
    answered.WaitForNotification();
    return result;
  }
  absl::Status Submit(const std::string& name) {
    config::JobSpec spec;
    spec.name = name;
    spec.steps = 1;
    return Ask<store::JobRecord>([&](Cluster& cluster, const auto& reply, Moment now) {
             cluster.Submit({.request_id = name, .spec = "", .parsed = spec}, reply, now);
           })
        .status();
  }
  absl::Status Cancel(const std::string& name) {
    return Ask<store::JobRecord>([&](Cluster& cluster, const auto& reply, Moment now) {
             cluster.Cancel("", name, reply, now);
           })
        .status();
  }
  absl::Status Delete(const std::string& name) {
    return Ask<bool>([&](Cluster& cluster, const auto& reply, Moment) {
             cluster.Delete("", name, reply);
           })
        .status();
  }
  bool Shows(const std::string& name) { return coordinator_->board().FindByName(name) != nullptr; }

  FullStore store_;
  char last_byte_ = 0;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(FullDiskTest, RequestsAreRefusedAndNothingUnstoredIsShown) {
  ASSERT_TRUE(Submit("a").ok());
  store_.full = true;
  for (const char* name : {"b", "c"}) {
    const absl::Status refused = Submit(name);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(refused.ToString(), HasSubstr("read-only"));
    EXPECT_THAT(refused.ToString(), HasSubstr("/x"));
    EXPECT_THAT(refused.ToString(), HasSubstr("make room"));
    EXPECT_FALSE(Shows(name));
  }
  EXPECT_EQ(Cancel("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Shows("a")) << "reads go on";
  EXPECT_FALSE(coordinator_->TryPost([](Cluster&, Moment) {})) << "reports wait at the workers";
}

TEST_F(FullDiskTest, ADeletionIsDoneAndWhatWaitedIsStoredWithIt) {
  for (const char* name : {"a", "old"}) {
    ASSERT_TRUE(Submit(name).ok());
    ASSERT_TRUE(Cancel(name).ok());
  }
  store_.full = true;
  EXPECT_FALSE(Submit("b").ok());
  ASSERT_TRUE(Delete("a").ok());
  EXPECT_FALSE(Shows("a"));
  EXPECT_TRUE(Shows("b")) << "it was refused because it waited; asking again answers as before";
  // The next write also stores what has waited since then.
  store_.full = false;
  ASSERT_TRUE(Delete("old").ok());
  EXPECT_TRUE(Submit("d").ok());
  EXPECT_TRUE(Submit("b").ok()) << "the same request id";
  EXPECT_TRUE(coordinator_->TryPost([](Cluster&, Moment) {}));
}

TEST_F(FullDiskTest, AnErrorIsAnsweredAsItIs) {
  store_.full = true;
  EXPECT_FALSE(Submit("b").ok());
  EXPECT_EQ(Delete("nobody").code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace takt::job
