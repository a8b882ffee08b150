// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/plan/plan.h"
#include "common/profile/profile_serde.h"
#include "coordinator/rpc/rpc_harness.h"
#include "gtest/gtest.h"

namespace takt::coordinator_rpc {
namespace {

std::shared_ptr<const profile::Profile> Measured() {
  auto profile = std::make_shared<profile::Profile>();
  profile->AddRank({.machine = "a processor"}, {.update_seconds = 1e-9});
  return profile;
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
    EXPECT_EQ(options.host.cores, 8);
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
    EXPECT_EQ(worker->ReadPrepare().binding().ranks_size(), 2);
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

}  // namespace
}  // namespace takt::coordinator_rpc
