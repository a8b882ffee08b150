// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
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

}  // namespace
}  // namespace takt::coordinator_rpc
