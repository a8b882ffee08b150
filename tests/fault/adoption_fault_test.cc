// SPDX-License-Identifier: Apache-2.0
// The coordinator comes back without its state, or with that of another cluster. The job keeps
// training until somebody decides.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::EmulatedJob;
using ::testing::HasSubstr;

constexpr int kSteps = 1000;

std::string Yaml(const std::string& name) {
  return absl::StrCat(
      "name: ", name,
      "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 2}"
      "\noptimizer: {adamw: {learning_rate: 3.0e-3}}"
      "\nsteps: ",
      kSteps, "\nseed: 7\nparallelism: {threads: 1, pipeline: 2, schedule: 1f1b}",
      "\ncheckpoint: {directory: ", name, ", every_steps: 100}\n");
}

using Losses = std::vector<std::pair<std::int64_t, double>>;

Losses LossesOf(Cluster& cluster, const std::string& job) {
  Losses losses;
  for (const v1::StepReport& step : cluster.Steps(job))
    losses.emplace_back(step.step(), step.loss());
  return losses;
}

TEST(LostState, AJobTrainsOnAndIsAdoptedAndEndsAsUndisturbed) {
  Cluster cluster(2);
  cluster.Submit(Yaml("undisturbed"));
  ASSERT_EQ(cluster.AwaitEnd("undisturbed").state(), v1::JOB_STATE_SUCCEEDED);
  const Losses undisturbed = LossesOf(cluster, "undisturbed");
  cluster.Submit(Yaml("j"));
  const v1::Job before = cluster.AwaitStep("j", 10);
  cluster.Kill(cluster.coordinator());

  cluster.StartCoordinator("empty");
  const v1::HeldJob held = cluster.AwaitHeld("j");
  EXPECT_EQ(held.num_ranks(), 2);
  EXPECT_EQ(held.ranks_size(), 2);
  for (const auto& [name, worker] : cluster.Workers()) {
    EXPECT_TRUE(worker.held()) << name;
    EXPECT_THAT(worker.refuses(), HasSubstr("holds a rank of cluster")) << name;
  }
  cluster.Adopt("j");
  const v1::Job job = cluster.AwaitEnd("j");
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.id(), before.id());
  EXPECT_EQ(job.generation(), before.generation());
  EXPECT_EQ(job.checkpoint().step(), kSteps);
  const Losses losses = LossesOf(cluster, "j");
  ASSERT_FALSE(losses.empty());
  const auto first = static_cast<std::size_t>(losses.front().first);
  EXPECT_EQ(losses, Losses(undisturbed.begin() + static_cast<std::ptrdiff_t>(first) - 1,
                           undisturbed.end()));
  cluster.AwaitIdle({"w0", "w1"});
}

TEST(LostState, AnAbandonedJobLetsItsWorkersGo) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "j", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.AwaitStep("j", 3);
  cluster.Kill(cluster.coordinator());
  cluster.StartCoordinator("empty");
  cluster.AwaitHeld("j");
  cluster.Abandon("j");
  cluster.AwaitIdle({"w0", "w1"});
  cluster.Submit(EmulatedJob{.name = "next", .pipeline = 2, .steps = 3}.Yaml());
  EXPECT_EQ(cluster.AwaitEnd("next").state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(WrongState, IsSaidOnBothSidesAndHurtsNothing) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "j", .pipeline = 2, .steps = 1'000'000}.Yaml());
  const std::int64_t before = cluster.AwaitStep("j", 3).last_step().step();
  cluster.Kill(cluster.coordinator());
  cluster.StartCoordinator("another");
  cluster.AwaitHeld("j");
  EXPECT_THAT(integration::ReadFile(cluster.directory() + "/coordinator.log"),
              HasSubstr("a worker refuses the commands of this coordinator"));
  for (const char* worker : {"w0", "w1"}) {
    EXPECT_THAT(integration::ReadFile(absl::StrCat(cluster.directory(), "/", worker, ".log")),
                HasSubstr("the commands of this coordinator are refused"));
  }
  cluster.Kill(cluster.coordinator());

  cluster.StartCoordinator();
  const v1::Job job = cluster.AwaitStep("j", before + 50);
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.reason();
  EXPECT_EQ(job.generation(), 1);
  cluster.Cancel("j");
  cluster.AwaitIdle({"w0", "w1"});
}

}  // namespace
}  // namespace takt
