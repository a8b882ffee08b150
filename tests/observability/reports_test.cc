// SPDX-License-Identifier: Apache-2.0
// Many workers tell one coordinator of their steps, as fast as they can. The rate is measured by
// `takt-bench reports`.
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/worker_swarm.h"

namespace takt::observability {
namespace {

using testing::Cluster;
using testing::EmulatedJob;
using testing::WorkerSwarm;

TEST(Reports, OfManyWorkersAtOnceAreAllTaken) {
  constexpr int kJobs = 16, kRanks = 4, kWorkers = kJobs * kRanks, kSteps = 50;
  Cluster cluster(0);
  const auto swarm = WorkerSwarm::Start({.coordinator = "unix:" + cluster.directory() + "/socket",
                                         .num_workers = kWorkers,
                                         .steps = kSteps});
  ASSERT_TRUE(swarm->AwaitAttached(Cluster::kPatience));
  for (int job = 0; job < kJobs; ++job) {
    cluster.Submit(
        EmulatedJob{.name = absl::StrCat("job-", job), .pipeline = kRanks, .steps = kSteps}.Yaml());
  }
  ASSERT_TRUE(swarm->AwaitTraining(Cluster::kPatience));
  for (int step = 0; step < kSteps; ++step) {
    for (int worker = 0; worker < kWorkers; ++worker) swarm->Step(worker);
  }
  ASSERT_TRUE(swarm->AwaitAcknowledged(Cluster::kPatience));
  EXPECT_EQ(swarm->counts().reported, kWorkers * kSteps);
  EXPECT_EQ(swarm->counts().acknowledged, kWorkers * kSteps);
  EXPECT_EQ(swarm->counts().lost_streams, 0);
  for (int job = 0; job < kJobs; ++job) {
    const std::string name = absl::StrCat("job-", job);
    EXPECT_EQ(cluster.AwaitEnd(name).state(), v1::JOB_STATE_SUCCEEDED);
    const std::vector<v1::StepReport> steps = cluster.Steps(name);
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps)) << name;
    for (int step = 0; step < kSteps; ++step) EXPECT_EQ(steps[step].step(), step + 1);
    EXPECT_EQ(cluster.Trace(name, kSteps).num_steps(), kSteps);
  }
}

}  // namespace
}  // namespace takt::observability
