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

// All workers lose the coordinator, and then a tenth of them lose their connections.
void ExpectRanksToComeBack(int workers_per_host) {
  constexpr int kPipeline = 32, kData = 4, kWorkers = kPipeline * kData;
  Cluster cluster(0, Cluster::Network::kTls);
  const auto swarm = WorkerSwarm::Start({.coordinator = cluster.address(),
                                         .authority = cluster.authority(),
                                         .num_workers = kWorkers,
                                         .workers_per_host = workers_per_host,
                                         .traces = false,
                                         .meets = true});
  ASSERT_TRUE(swarm->AwaitAttached(Cluster::kPatience));
  cluster.Submit(EmulatedJob{.name = "wide", .pipeline = kPipeline, .data = kData}.Yaml());
  ASSERT_TRUE(swarm->AwaitTraining(Cluster::kPatience));
  cluster.Kill(cluster.coordinator());
  cluster.StartCoordinator();
  swarm->Reconnect(kWorkers);
  ASSERT_TRUE(swarm->AwaitAttached(Cluster::kPatience));
  swarm->Reconnect(kWorkers / 10);
  ASSERT_TRUE(swarm->AwaitAttached(Cluster::kPatience));
  EXPECT_TRUE(swarm->AwaitTraining(absl::ZeroDuration()));
  const v1::Job job = cluster.Job("wide");
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(job.generation(), 1);
  EXPECT_EQ(swarm->counts().lost_streams, 0);
}

TEST(Ranks, OfAWideJobComeBackTogetherAndTrainOn) { ExpectRanksToComeBack(/*workers_per_host=*/0); }

TEST(Ranks, OfHostsThatShareAConnectionComeBackTogetherAndTrainOn) {
  ExpectRanksToComeBack(/*workers_per_host=*/8);
}

TEST(Ranks, OfAWideJobMeetTheirNeighboursAndAreAllToldOfAFault) {
  constexpr int kPipeline = 32, kData = 2;
  Cluster cluster(0);
  const auto swarm = WorkerSwarm::Start({.coordinator = cluster.address(),
                                         .num_workers = kPipeline * kData,
                                         .traces = false,
                                         .meets = true});
  ASSERT_TRUE(swarm->AwaitAttached(Cluster::kPatience));
  cluster.Submit(EmulatedJob{.name = "wide", .pipeline = kPipeline, .data = kData}.Yaml());
  ASSERT_TRUE(swarm->AwaitTraining(Cluster::kPatience));
  EXPECT_LE(swarm->counts().largest_assignment_bytes, 64 << 10);
  swarm->Fail(0);
  ASSERT_TRUE(swarm->AwaitStopped(Cluster::kPatience));
  const v1::Job job = cluster.AwaitEnd("wide");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_LT(job.reason().size(), 2000u) << job.reason();
}

}  // namespace
}  // namespace takt::observability
