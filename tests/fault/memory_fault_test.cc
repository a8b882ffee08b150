// SPDX-License-Identifier: Apache-2.0
// Workers are killed under a job that saves no files: it resumes from the copies of its state in
// the memory of the others, or fails and says what is missing.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 400;

std::string Yaml(const std::string& name, const std::string& parallelism,
                 const std::string& checkpoint = "checkpoint: {in_memory: 1}") {
  return absl::StrCat(
      "name: ", name,
      "\nmodel: {family: gpt2, layers: 4, hidden: 32, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 1}\nseed: 7\nsteps: ",
      kSteps, "\nparallelism: {threads: 1, ",
      absl::StrContains(parallelism, "schedule:") ? "" : "schedule: 1f1b, ", parallelism, "}\n",
      checkpoint, "\n");
}

// Returns the losses by step. Every step is there once.
std::map<std::int64_t, double> LossesOf(Cluster& cluster, const std::string& job) {
  std::map<std::int64_t, double> losses;
  for (const v1::StepReport& step : cluster.Steps(job)) {
    EXPECT_TRUE(losses.emplace(step.step(), step.loss()).second) << step.step();
  }
  EXPECT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
  return losses;
}

class MemoryFault : public ::testing::Test {
 protected:
  std::map<std::int64_t, double> LossesOf(const std::string& job) {
    return takt::LossesOf(cluster_, job);
  }
  // Kills the worker of this rank while the job trains. Returns the last step that was committed
  // when it was killed.
  std::int64_t KillRank(const std::string& job, int rank, std::int64_t after) {
    const v1::Job at = cluster_.AwaitStep(job, after);
    cluster_.Kill(cluster_.worker(at.ranks(rank).worker()));
    return at.last_step().step();
  }
  // Waits until the job trains in its second generation, or has ended.
  v1::Job AwaitNextGeneration(const std::string& job) {
    return cluster_.AwaitJob(job, [](const v1::Job& j) {
      const bool goes_on = j.generation() >= 2 && j.state() == v1::JOB_STATE_RUNNING;
      return goes_on || testing::HasEnded(j);
    });
  }

  Cluster cluster_{5};
};

TEST_F(MemoryFault, AKilledWorkersRankGoesOnFromItsNeighboursMemoryWithTheSameLosses) {
  cluster_.Submit(Yaml("whole", "pipeline: 3", ""));
  ASSERT_EQ(cluster_.AwaitEnd("whole").state(), v1::JOB_STATE_SUCCEEDED);
  const std::map<std::int64_t, double> whole = LossesOf("whole");
  cluster_.Submit(Yaml("j", "pipeline: 3"));
  const std::int64_t killed_at = KillRank("j", 1, 30);
  const v1::Job again = AwaitNextGeneration("j");
  EXPECT_EQ(again.state(), v1::JOB_STATE_RUNNING) << again.reason();
  EXPECT_GE(again.memory_step(), killed_at - 1) << again.DebugString();
  const v1::Job ended = cluster_.AwaitEnd("j");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(LossesOf("j"), whole);
}

// The worker of rank 0 is the one that reports losses.
TEST_F(MemoryFault, SoDoTheFirstRankAReplicaAndARankWithTwoStages) {
  for (const auto& [job, parallelism] :
       std::map<std::string, std::string>{{"j2", "pipeline: 2"},
                                          {"j1", "pipeline: 1, data: 2"},
                                          {"j3", "pipeline: 2, schedule: dualpipe"}}) {
    const std::string whole = absl::StrCat("whole-", job);
    cluster_.Submit(Yaml(whole, parallelism, ""));
    ASSERT_EQ(cluster_.AwaitEnd(whole).state(), v1::JOB_STATE_SUCCEEDED);
    cluster_.Submit(Yaml(job, parallelism));
    const std::int64_t killed_at = KillRank(job, 0, 30);
    const v1::Job again = AwaitNextGeneration(job);
    EXPECT_GE(again.memory_step(), killed_at - 1) << again.DebugString();
    EXPECT_EQ(cluster_.AwaitEnd(job).state(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(LossesOf(job), LossesOf(whole));
  }
}

TEST_F(MemoryFault, SoDoRanksThatSplitLayersAndThatShareSequences) {
  const std::vector<std::pair<std::string, std::string>> jobs = {
      {"split", "pipeline: 2, tensor: 2"},  // of five workers; then one less is there
      {"shared", "pipeline: 1, context: 2"}};
  for (const auto& [job, parallelism] : jobs) {
    const std::string whole = absl::StrCat("whole-", job);
    cluster_.Submit(Yaml(whole, parallelism, ""));
    ASSERT_EQ(cluster_.AwaitEnd(whole).state(), v1::JOB_STATE_SUCCEEDED);
    cluster_.Submit(Yaml(job, parallelism));
    const std::int64_t killed_at = KillRank(job, 1, 30);
    const v1::Job again = AwaitNextGeneration(job);
    EXPECT_GE(again.memory_step(), killed_at - 1) << again.DebugString();
    EXPECT_EQ(cluster_.AwaitEnd(job).state(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(LossesOf(job), LossesOf(whole));
  }
}

// Both workers are needed, and one is away for a while.
TEST(MemoryFaultWithoutSpares, NobodyElseGetsTheWorkerWithTheOnlyStateOfAJobThatWaits) {
  Cluster cluster(2);
  cluster.Submit(Yaml("whole", "pipeline: 2", ""));
  ASSERT_EQ(cluster.AwaitEnd("whole").state(), v1::JOB_STATE_SUCCEEDED);
  cluster.Submit(Yaml("j", "pipeline: 2"));
  const v1::Job at = cluster.AwaitStep("j", 30);
  const std::string lost = at.ranks(1).worker();
  cluster.Kill(cluster.worker(lost));
  cluster.AwaitJob("j", [](const v1::Job& j) { return j.ranks_size() == 0; });
  cluster.Submit(Yaml("other", "pipeline: 1", ""));
  const v1::Job waits = cluster.AwaitJob("other", [](const v1::Job& j) {
    return j.state() != v1::JOB_STATE_QUEUED || absl::StrContains(j.reason(), "reserved for job j");
  });
  EXPECT_EQ(waits.state(), v1::JOB_STATE_QUEUED) << waits.reason();
  cluster.StartWorker(lost);
  const v1::Job ended = cluster.AwaitEnd("j");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  EXPECT_GE(ended.memory_step(), at.last_step().step() - 1);
  EXPECT_EQ(LossesOf(cluster, "j"), LossesOf(cluster, "whole"));
  EXPECT_EQ(cluster.AwaitEnd("other").state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(MemoryFault, WithoutTheHolderAndItsNeighbourTheJobFailsAndSaysWhy) {
  cluster_.Submit(Yaml("j", "pipeline: 2"));
  const v1::Job at = cluster_.AwaitStep("j", 30);
  for (const v1::BoundRank& rank : at.ranks()) cluster_.Kill(cluster_.worker(rank.worker()));
  const v1::Job ended = cluster_.AwaitEnd("j");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended.reason(), HasSubstr("cannot bring the job's state back"));
}

TEST_F(MemoryFault, WithoutTheHolderAndItsNeighbourAJobWithCheckpointsGoesOnFromThem) {
  const std::string checkpoint = absl::StrCat("checkpoint: {directory: ", cluster_.directory(),
                                              "/saved, every_steps: 10, in_memory: 1}");
  cluster_.Submit(Yaml("j", "pipeline: 2", checkpoint));
  const v1::Job at = cluster_.AwaitJob("j", [](const v1::Job& j) {
    return (j.has_checkpoint() && j.last_step().step() >= 30) || testing::HasEnded(j);
  });
  for (const v1::BoundRank& rank : at.ranks()) cluster_.Kill(cluster_.worker(rank.worker()));
  const v1::Job again = AwaitNextGeneration("j");
  EXPECT_EQ(again.memory_step(), 0);
  EXPECT_GE(again.resumed_step(), 10) << again.reason();
  EXPECT_EQ(cluster_.AwaitEnd("j").state(), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace takt
