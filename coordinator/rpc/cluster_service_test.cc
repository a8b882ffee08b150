// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/checkpoint/hash.h"
#include "common/plan/plan.h"
#include "common/profile/profile_serde.h"
#include "coordinator/rpc/rpc_harness.h"
#include "coordinator/store/maintenance.h"
#include "coordinator/store/sqlite_store.h"
#include "gtest/gtest.h"

namespace takt::coordinator_rpc {
namespace {

std::shared_ptr<const profile::Profile> Measured() {
  auto profile = std::make_shared<profile::Profile>();
  profile->AddRank({.machine = "a processor"}, {.update_seconds = 1e-9});
  return profile;
}

TEST_F(RpcTest, WorkersAreListedByPages) {
  const auto w0 = Attach("w0");
  const auto w1 = Attach("w1");
  const auto w2 = Attach("w2");
  v1::ListWorkersRequest request;
  v1::ListWorkersResponse all, first, second;
  ASSERT_TRUE(cluster_->ListWorkers(NewContext().get(), request, &all).ok());
  EXPECT_EQ(all.workers_size(), 3);
  EXPECT_EQ(all.next_page_token(), "");
  request.set_page_size(2);
  ASSERT_TRUE(cluster_->ListWorkers(NewContext().get(), request, &first).ok());
  ASSERT_EQ(first.workers_size(), 2);
  EXPECT_EQ(first.workers(1).name(), "w1");
  request.set_page_token(first.next_page_token());
  ASSERT_TRUE(cluster_->ListWorkers(NewContext().get(), request, &second).ok());
  ASSERT_EQ(second.workers_size(), 1);
  EXPECT_EQ(second.workers(0).name(), "w2");
  EXPECT_EQ(second.next_page_token(), "");
}

TEST_F(RpcTest, TheProfileIsGivenToWhoeverPlans) {
  v1::GetProfileResponse response;
  ASSERT_TRUE(cluster_->GetProfile(NewContext().get(), {}, &response).ok());
  EXPECT_EQ(response.profile().ranks_size(), 0);
  EXPECT_EQ(response.profile().program_version(), kTaktVersion);
  options_.cluster.read_profile = Measured;
  Restart();
  ASSERT_TRUE(cluster_->GetProfile(NewContext().get(), {}, &response).ok());
  EXPECT_EQ(response.profile().SerializeAsString(), profile::FormatProfile(*Measured()));
}

// The options of all plans that were made, under `mutex`.
struct Asked {
  absl::Mutex mutex;
  std::vector<plan::PlanOptions> options;
};

TEST_F(RpcTest, EveryPlanIsMadeWithTheProfileForTheHostsOfTheWorkers) {
  const auto asked = std::make_shared<Asked>();
  options_.cluster.read_profile = Measured;
  options_.make_plan = [asked](const config::JobSpec& spec, const plan::PlanOptions& options) {
    absl::MutexLock lock(&asked->mutex);
    asked->options.push_back(options);
    return plan::MakePlan(spec, options);
  };
  Restart();
  const auto idle = Attach("w2");
  const auto workers = RunJob("j", 2);
  absl::MutexLock lock(&asked->mutex);
  ASSERT_EQ(asked->options.size(), 2u);  // when it was submitted, and for its gang
  for (const plan::PlanOptions& options : asked->options) {
    ASSERT_NE(options.profile, nullptr);
    EXPECT_EQ(options.profile->ranks().size(), 1u);
    EXPECT_EQ(options.host.threads, 2);
    EXPECT_EQ(options.host.workers, 3);
    EXPECT_EQ(options.max_workers, 2);
  }
}

// Messages take a second each, which nobody knew when the job was planned for two ranks.
TEST_F(RpcTest, AJobThatTrainsIsPlannedAgainByWhatWasMeasuredSince) {
  const auto nothing = std::make_shared<const profile::Profile>();
  const auto slow_messages = std::make_shared<profile::Profile>();
  slow_messages->AddMessage(profile::KeyOfMessage(/*same_host=*/true, 1024),
                            {.bytes = 1024, .seconds = 1});
  const auto measured = std::make_shared<std::atomic<bool>>(false);
  options_.cluster.read_profile = [=]() -> std::shared_ptr<const profile::Profile> {
    if (*measured) return slow_messages;
    return nothing;
  };
  options_.cluster.replan = {.interval = absl::ZeroDuration(), .least_steps = 1};
  Restart();
  std::vector<std::unique_ptr<RpcWorker>> workers;
  for (const char* name : {"w0", "w1"}) workers.push_back(Attach(name));
  v1::JobSpec spec = Spec("j", 2, 1000);
  spec.mutable_parallelism()->clear_pipeline();
  const absl::StatusOr<v1::Job> submitted = Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  for (const auto& worker : workers) {
    EXPECT_EQ(worker->ReadPrepare().binding().pp_size(), 2);
    worker->Say(v1::JobUpdate::PHASE_ADMITTED);
  }
  for (const auto& worker : workers) EXPECT_TRUE(worker->Read().has_start());

  const auto gained = std::make_shared<absl::Notification>();
  const auto subscription = coordinator_->board().Subscribe(
      submitted->id(), [gained, board = &coordinator_->board(), id = submitted->id()] {
        const job::JobView view = board->FindById(id);
        if (view != nullptr && view->replan_gain > 0.5 && !gained->HasBeenNotified())
          gained->Notify();
      });
  for (const auto& worker : workers) worker->Report(1);
  *measured = true;
  EXPECT_TRUE(gained->WaitForNotificationWithTimeout(absl::Minutes(1)));
  EXPECT_EQ(Get("j").state(), v1::JOB_STATE_RUNNING);
  EXPECT_GT(Get("j").replan_gain_ratio(), 0.5);
}

using BackupReader = std::unique_ptr<grpc::ClientReader<v1::BackUpStateResponse>>;

struct Backup {
  std::string bytes;
  v1::BackupEnd end;
  grpc::Status status;
};
Backup ReadBackup(const BackupReader& reader) {
  Backup backup;
  v1::BackUpStateResponse part;
  while (reader->Read(&part)) {
    backup.bytes += part.data();
    if (part.has_end()) backup.end = part.end();
  }
  backup.status = reader->Finish();
  return backup;
}

TEST_F(RpcTest, ABackupIsTheStateOfOneMoment) {
  open_backup_ = [file = dir_ + "/state.sqlite"] { return store::OpenBackup(file); };
  Restart();
  ASSERT_TRUE(Submit(Spec("j", 8)).ok());
  // It makes the copy longer than one message.
  const std::string long_reason(400'000, 'r');
  ASSERT_TRUE(
      store_
          ->Commit(
              {.jobs = {{.number = 100, .id = "ended", .name = "ended", .reason = long_reason}}})
          .ok());
  const auto context = NewContext();
  const Backup backup = ReadBackup(cluster_->BackUpState(context.get(), {}));
  ASSERT_TRUE(backup.status.ok()) << backup.status.error_message();
  EXPECT_GT(backup.bytes.size(), long_reason.size());
  EXPECT_EQ(backup.end.size_bytes(), static_cast<std::int64_t>(backup.bytes.size()));
  EXPECT_EQ(backup.end.xxh3_128(), checkpoint::HashOf(std::as_bytes(std::span(backup.bytes))));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/state.sqlite.backup"));
  std::ofstream(dir_ + "/copy", std::ios::binary) << backup.bytes;
  const auto copy = store::OpenSqliteStore(dir_ + "/copy", {.reserve_bytes = 0}).value();
  EXPECT_EQ(copy->Load().value().jobs.size(), 2u);
}

TEST_F(RpcTest, OneBackupIsMadeAtATime) {
  absl::Notification entered, go_on;
  open_backup_ = [&]() -> absl::StatusOr<FileDescriptor> {
    entered.Notify();
    go_on.WaitForNotification();
    return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  };
  Restart();
  const auto first = NewContext(), second = NewContext();
  const BackupReader reader = cluster_->BackUpState(first.get(), {});
  entered.WaitForNotification();
  EXPECT_EQ(ReadBackup(cluster_->BackUpState(second.get(), {})).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  go_on.Notify();
  const Backup backup = ReadBackup(reader);
  EXPECT_TRUE(backup.status.ok()) << backup.status.error_message();
  EXPECT_EQ(backup.end.size_bytes(), 0);
}

TEST_F(RpcTest, WithoutAStateFileThereIsNoBackup) {
  const auto context = NewContext();
  EXPECT_EQ(ReadBackup(cluster_->BackUpState(context.get(), {})).status.error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace takt::coordinator_rpc
