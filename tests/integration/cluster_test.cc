// SPDX-License-Identifier: Apache-2.0
// Several jobs, waiting, draining, and the coordinator's death, with real daemons.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::EmulatedJob;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void ExpectEachStepOnce(const std::vector<v1::StepReport>& steps, std::int64_t num_steps) {
  ASSERT_EQ(static_cast<std::int64_t>(steps.size()), num_steps);
  for (std::int64_t i = 0; i < num_steps; ++i) EXPECT_EQ(steps[i].step(), i + 1);
}

bool IsRunning(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_RUNNING || testing::HasEnded(job);
}

TEST(ClusterOfDaemons, TwoJobsRunAtOnceAndAThirdWaitsSayingForWhat) {
  Cluster cluster(4);
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.Submit(EmulatedJob{.name = "b", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.Submit(EmulatedJob{.name = "c", .pipeline = 2, .steps = 5}.Yaml());
  cluster.AwaitStep("a", 2);
  cluster.AwaitStep("b", 2);
  const v1::Job waiting = cluster.Job("c");
  EXPECT_EQ(waiting.state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(waiting.reason(), HasSubstr("2 workers"));
  std::set<std::string> held;
  for (const char* name : {"a", "b"}) {
    const v1::Job job = cluster.Job(name);
    for (const v1::BoundRank& rank : job.ranks()) held.insert(rank.worker());
  }
  EXPECT_EQ(held.size(), 4u) << "the two jobs must hold different workers";

  cluster.Cancel("a");
  EXPECT_EQ(cluster.AwaitEnd("c").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Job("b").state(), v1::JOB_STATE_RUNNING);
  cluster.Cancel("b");
  cluster.AwaitIdle({"w0", "w1", "w2", "w3"});
}

TEST(ClusterOfDaemons, ADrainedWorkerTakesNoNewJobUntilItIsUndrained) {
  Cluster cluster(2);
  cluster.Drain("w1");
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 3}.Yaml());
  const v1::Job waiting =
      cluster.AwaitJob("a", [](const v1::Job& job) { return !job.reason().empty(); });
  EXPECT_EQ(waiting.state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(waiting.reason(), HasSubstr("drained"));
  cluster.Submit(EmulatedJob{.name = "b", .pipeline = 1, .steps = 3}.Yaml());
  cluster.Undrain("w1");
  EXPECT_EQ(cluster.AwaitEnd("a").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.AwaitEnd("b").state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(ClusterOfDaemons, TrainingGoesOnWhileTheCoordinatorIsDeadAndEveryStepIsThereOnce) {
  Cluster cluster(4);
  // About 5 seconds.
  constexpr std::int64_t kSteps = 200;
  cluster.Submit(EmulatedJob{.name = "a", .steps = kSteps, .milliseconds = 1}.Yaml());
  cluster.Submit(EmulatedJob{.name = "queued", .pipeline = 3, .steps = 2}.Yaml());
  const std::int64_t before = cluster.AwaitStep("a", 5).last_step().step();
  cluster.Kill(cluster.coordinator());
  // Nobody is told of steps meanwhile: the first thing that a restarted coordinator hears is how
  // far they came.
  cluster.StartCoordinator();
  const v1::Job back = cluster.AwaitStep("a", before + 1);
  EXPECT_EQ(back.generation(), 1) << "it was not started again: " << back.reason();
  cluster.Kill(cluster.coordinator());
  cluster.StartCoordinator();
  const v1::Job job = cluster.AwaitEnd("a");
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.generation(), 1);
  ExpectEachStepOnce(cluster.Steps("a"), kSteps);
  EXPECT_EQ(cluster.AwaitEnd("queued").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

TEST(ClusterOfDaemons, AJobThatEndsWhileTheCoordinatorIsDeadIsFoundSucceeded) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 20}.Yaml());
  cluster.AwaitJob("a", IsRunning);
  cluster.Kill(cluster.coordinator());
  // The job's steps take well under a second; whether it ends before or after the restart, the
  // outcome is the same.
  cluster.StartCoordinator();
  const v1::Job job = cluster.AwaitEnd("a");
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  ExpectEachStepOnce(cluster.Steps("a"), 20);
  cluster.AwaitIdle({"w0", "w1"});
}

}  // namespace
}  // namespace takt
