// SPDX-License-Identifier: Apache-2.0
// Workers are killed under elastic jobs, and others join: the jobs continue with fewer ranks and
// then with more, and have the losses of an undisturbed job.
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::Contains;
using ::testing::HasSubstr;

std::string Yaml(const std::string& name, int hidden, std::int64_t steps,
                 const std::string& parallelism, const std::string& rest, int batch = 8) {
  return absl::StrCat("name: ", name, "\nmodel: {family: gpt2, layers: 4, hidden: ", hidden,
                      ", heads: 4, context: 64, vocab: 256}"
                      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
                      "\nbatch: {global: ",
                      batch, ", microbatch: 1}\nseed: 7\nsteps: ", steps,
                      "\nparallelism: {threads: 1, schedule: 1f1b, ", parallelism, "}\n", rest,
                      "\n");
}

class ElasticFault : public ::testing::Test {
 protected:
  // Returns the losses by step of a job that has ended. Every step up to the last is there once.
  static std::map<std::int64_t, double> LossesOf(Cluster& cluster, const std::string& job) {
    std::map<std::int64_t, double> losses;
    for (const v1::StepReport& step : cluster.Steps(job)) {
      EXPECT_TRUE(losses.emplace(step.step(), step.loss()).second) << step.step();
    }
    if (!losses.empty()) {
      EXPECT_EQ(losses.rbegin()->first, static_cast<std::int64_t>(losses.size()));
    }
    return losses;
  }
  // Kills the worker of the last rank after this step. Returns its name.
  static std::string KillLastRank(Cluster& cluster, const std::string& job, std::int64_t after) {
    const v1::Job at = cluster.AwaitStep(job, after);
    const std::string worker = at.ranks(at.ranks_size() - 1).worker();
    cluster.Kill(cluster.worker(worker));
    return worker;
  }
  // Waits until the job trains with so many ranks, or has ended.
  static v1::Job AwaitRanks(Cluster& cluster, const std::string& job, int ranks,
                            std::int64_t generation) {
    return cluster.AwaitJob(job, [&](const v1::Job& j) {
      const bool there = j.state() == v1::JOB_STATE_RUNNING && j.ranks_size() == ranks &&
                         j.generation() >= generation;
      return there || testing::HasEnded(j);
    });
  }
  static std::vector<std::string> ReasonsOf(const v1::Job& job) {
    std::vector<std::string> reasons;
    for (const v1::JobTransition& transition : job.transitions())
      reasons.push_back(transition.reason());
    return reasons;
  }
};

TEST_F(ElasticFault, WithoutASpareAJobGoesOnWithFewerRanksFromMemoryWithTheSameLosses) {
  constexpr std::int64_t kSteps = 300;
  Cluster cluster(3);
  cluster.Submit(Yaml("whole", 32, kSteps, "pipeline: 3", ""));
  ASSERT_EQ(cluster.AwaitEnd("whole").state(), v1::JOB_STATE_SUCCEEDED);
  cluster.Submit(Yaml("j", 32, kSteps, "pipeline: 3",
                      "elastic: {pipeline: {min: 2, max: 3}}\ncheckpoint: {in_memory: 1}"));
  KillLastRank(cluster, "j", 30);
  const v1::Job fewer = AwaitRanks(cluster, "j", 2, /*generation=*/2);
  EXPECT_EQ(fewer.state(), v1::JOB_STATE_RUNNING) << fewer.reason();
  EXPECT_GE(fewer.memory_step(), 29) << fewer.DebugString();
  EXPECT_THAT(ReasonsOf(fewer), Contains(HasSubstr("preparing 2 ranks instead of 3")));
  const v1::Job ended = cluster.AwaitEnd("j");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  const std::map<std::int64_t, double> losses = LossesOf(cluster, "j");
  EXPECT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_EQ(losses, LossesOf(cluster, "whole"));
}

// Each of two replicas has half of the moments, and copies of half of the layers from both. Sums
// over replicas are grouped differently, so losses agree but for rounding.
TEST_F(ElasticFault, AReplicaThatSharedTheOptimizersStateGoesOnAloneFromMemory) {
  constexpr std::int64_t kSteps = 300;
  Cluster cluster(2);
  cluster.Submit(Yaml("whole", 32, kSteps, "pipeline: 1, data: 2", ""));
  ASSERT_EQ(cluster.AwaitEnd("whole").state(), v1::JOB_STATE_SUCCEEDED);
  cluster.Submit(Yaml("j", 32, kSteps, "pipeline: 1, data: 2, shard: optimizer",
                      "elastic: {data: {min: 1, max: 2}}\ncheckpoint: {in_memory: 1}"));
  KillLastRank(cluster, "j", 30);
  const v1::Job alone = AwaitRanks(cluster, "j", 1, /*generation=*/2);
  EXPECT_EQ(alone.state(), v1::JOB_STATE_RUNNING) << alone.reason();
  EXPECT_GE(alone.memory_step(), 29) << alone.DebugString();
  const v1::Job ended = cluster.AwaitEnd("j");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  const std::map<std::int64_t, double> losses = LossesOf(cluster, "j");
  const std::map<std::int64_t, double> whole = LossesOf(cluster, "whole");
  ASSERT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
  for (const auto& [step, loss] : losses) {
    if (step <= alone.memory_step()) {
      EXPECT_EQ(loss, whole.at(step)) << step;
    } else {
      EXPECT_NEAR(loss, whole.at(step), 1e-3) << step;
    }
  }
}

// A replica alone has the terms of both in its sums, so not a bit of a loss tells how many there
// were. The batch is large, so that two replicas are faster than one even if others use the
// machine.
TEST_F(ElasticFault, AReplicaTrainsOnWithTheSameBitsUntilAnotherJoins) {
  constexpr int kHidden = 128, kBatch = 32;
  constexpr std::int64_t kEndless = 1'000'000;
  constexpr char kReplicas[] = "pipeline: 1, data: 2, data_leaves: 2";
  Cluster cluster(2);
  cluster.Submit(Yaml("j", kHidden, kEndless, kReplicas,
                      absl::StrCat("elastic: {data: {min: 1, max: 2}}\ncheckpoint: {directory: ",
                                   cluster.directory(), "/saved, every_steps: 20, in_memory: 1}"),
                      kBatch));
  const std::string killed = KillLastRank(cluster, "j", 30);
  const v1::Job alone = AwaitRanks(cluster, "j", 1, /*generation=*/2);
  EXPECT_EQ(alone.state(), v1::JOB_STATE_RUNNING) << alone.reason();
  EXPECT_GE(alone.memory_step(), 29) << alone.DebugString();
  cluster.AwaitStep("j", alone.last_step().step() + 10);
  cluster.StartWorker(killed);
  const v1::Job both = AwaitRanks(cluster, "j", 2, /*generation=*/3);
  EXPECT_EQ(both.state(), v1::JOB_STATE_RUNNING) << both.reason();
  cluster.AwaitStep("j", both.last_step().step() + 20);
  cluster.Cancel("j");
  cluster.AwaitEnd("j");
  const std::map<std::int64_t, double> losses = LossesOf(cluster, "j");
  cluster.Submit(Yaml("whole", kHidden, kEndless, "pipeline: 1, data: 2", "", kBatch));
  cluster.AwaitStep("whole", std::ssize(losses));
  cluster.Cancel("whole");
  cluster.AwaitEnd("whole");
  std::map<std::int64_t, double> whole = LossesOf(cluster, "whole");
  whole.erase(whole.upper_bound(std::ssize(losses)), whole.end());
  EXPECT_EQ(losses, whole);
}

// Half a replica is of no use, so the job needs two workers of the three that are left.
TEST_F(ElasticFault, AReplicaGoesOnWithAllRanksThatSplitItsLayers) {
  constexpr std::int64_t kEndless = 1'000'000;
  Cluster cluster(4);
  cluster.Submit(Yaml("j", 32, kEndless, "pipeline: 1, data: 2, tensor: 2",
                      absl::StrCat("elastic: {data: {min: 1, max: 2}}\ncheckpoint: {directory: ",
                                   cluster.directory(), "/saved, every_steps: 20}")));
  KillLastRank(cluster, "j", 30);
  const v1::Job fewer = AwaitRanks(cluster, "j", 2, /*generation=*/2);
  EXPECT_EQ(fewer.state(), v1::JOB_STATE_RUNNING) << fewer.reason();
  const std::int64_t last = fewer.last_step().step() + 20;
  cluster.AwaitStep("j", last);
  cluster.Cancel("j");
  cluster.AwaitEnd("j");
  EXPECT_GE(LossesOf(cluster, "j").size(), static_cast<std::size_t>(last));
}

// Layers are large enough that two ranks are faster than one even where messages take long, because
// others use the machine.
TEST_F(ElasticFault, AJobThatShrankGrowsWhenAWorkerJoinsWithTheSameLosses) {
  constexpr int kHidden = 128;
  constexpr std::int64_t kEndless = 1'000'000;
  Cluster cluster(2);
  const std::string checkpoint =
      absl::StrCat("checkpoint: {directory: ", cluster.directory(), "/saved, every_steps: 20}");
  cluster.Submit(Yaml("j", kHidden, kEndless, "pipeline: 2",
                      absl::StrCat("elastic: {pipeline: {min: 1, max: 2}}\n", checkpoint)));
  const std::string killed = KillLastRank(cluster, "j", 30);
  const v1::Job fewer = AwaitRanks(cluster, "j", 1, /*generation=*/2);
  EXPECT_EQ(fewer.state(), v1::JOB_STATE_RUNNING) << fewer.reason();
  cluster.StartWorker(killed);
  const v1::Job more = AwaitRanks(cluster, "j", 2, /*generation=*/3);
  EXPECT_EQ(more.state(), v1::JOB_STATE_RUNNING) << more.reason();
  EXPECT_THAT(ReasonsOf(more), Contains(HasSubstr("grows from 1 to 2 workers: predicted")));
  const std::int64_t last = more.last_step().step() + 50;
  cluster.AwaitStep("j", last);
  cluster.Cancel("j");
  cluster.AwaitEnd("j");
  cluster.AwaitIdle({"w0", "w1"});

  cluster.Submit(Yaml("whole", kHidden, kEndless, "pipeline: 2", ""));
  cluster.AwaitStep("whole", last);
  cluster.Cancel("whole");
  cluster.AwaitEnd("whole");
  const std::map<std::int64_t, double> losses = LossesOf(cluster, "j");
  const std::map<std::int64_t, double> whole = LossesOf(cluster, "whole");
  for (std::int64_t step = 1; step <= last; ++step) {
    ASSERT_TRUE(losses.contains(step) && whole.contains(step)) << step;
    EXPECT_EQ(losses.at(step), whole.at(step)) << step;
  }
}

}  // namespace
}  // namespace takt
