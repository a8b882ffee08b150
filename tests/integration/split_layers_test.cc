// SPDX-License-Identifier: Apache-2.0
// Jobs whose ranks split the layers of a real model (`parallelism.tensor`) or share its sequences
// (`parallelism.context`), through real daemons.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/split_job.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

TEST(SplitLayers, TrainAlikeBitForBitWithEquallyManyLeaves) {
  Cluster cluster(4);
  const std::vector<std::string> layouts = {
      "pipeline: 1, tensor: 1, tensor_leaves: 2, schedule: naive",
      "pipeline: 2, tensor: 2, schedule: 1f1b, transport: shm",
      "pipeline: 2, tensor: 2, schedule: 1f1b, transport: gloo",
      "pipeline: 2, tensor: 2, schedule: zb-v, recompute: full",
      "pipeline: 2, tensor: 2, schedule: interleaved-1f1b, chunks: 2, recompute: selective",
  };
  Curve first;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Curve curve =
        Train(cluster, {.name = absl::StrCat("split-", i), .parallelism = layouts[i]});
    ASSERT_EQ(curve.size(), 6U) << layouts[i];
    EXPECT_LT(curve.back().first, curve.front().first);
    if (i == 0) first = curve;
    EXPECT_EQ(curve, first) << layouts[i];
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// Sums over replicas are the same, whoever has the optimizer's state. Those that write a layer join
// the pieces of ranks and the shares of replicas.
TEST(SplitLayers, ReplicasMayShareTheOptimizersState) {
  Cluster cluster(8);
  const std::string mesh = "pipeline: 2, data: 2, tensor: 2, schedule: 1f1b, shard: ";
  for (const std::string precision : {"f32", "bf16"}) {
    SCOPED_TRACE(precision);
    const auto job = [&, precision](const std::string& name, const std::string& shard) {
      return SplitJob{.name = name + "-" + precision,
                      .parallelism = mesh + shard,
                      .directory = absl::StrCat(cluster.directory(), "/", name, "-", precision),
                      .precision = precision};
    };
    const Curve none = Train(cluster, job("none", "none"));
    ASSERT_EQ(none.size(), 6U);
    SplitJob shared = job("shared", "optimizer");
    shared.steps = 3;
    Curve parts = Train(cluster, shared);
    // Without shards, and with them again.
    for (const std::string shard : {"none", "optimizer"}) {
      const SplitJob rest = job("rest-" + shard, shard);
      fs::copy(shared.directory, rest.directory,
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      Curve curve = parts;
      const Curve more = Train(cluster, rest);
      curve.insert(curve.end(), more.begin(), more.end());
      EXPECT_EQ(curve, none) << shard;
    }
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// Checkpoints have whole layers.
TEST(SplitLayers, GoOnWithFewerRanksForEachAndWithMoreAgain) {
  Cluster cluster(4);
  const std::string two = "pipeline: 2, tensor: 2, schedule: ";
  for (const auto& [tag, model] : {std::pair("gpt-", kGpt), std::pair("llama-", kLlama)}) {
    SCOPED_TRACE(tag);
    const auto directory = [&, prefix = std::string(tag)](const std::string& name) {
      return absl::StrCat(cluster.directory(), "/", prefix, name);
    };
    // Returns the job that resumes from what the job `from` left.
    const auto job = [&, prefix = std::string(tag), its_model = std::string(model)](
                         const std::string& name, const std::string& from, int steps,
                         const std::string& parallelism) {
      if (!from.empty()) {
        fs::copy(directory(from), directory(name),
                 fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      }
      return SplitJob{.name = prefix + name,
                      .parallelism = parallelism,
                      .model = its_model,
                      .directory = directory(name),
                      .steps = steps};
    };
    const Curve straight = Train(cluster, job("straight", "", 6, two + "1f1b"));
    ASSERT_EQ(straight.size(), 6U);
    Curve parts = Train(cluster, job("split", "", 2, two + "1f1b"));
    const Curve whole = Train(
        cluster,
        job("whole", "split", 4, "pipeline: 2, tensor: 1, tensor_leaves: 2, schedule: zb-h1"));
    parts.insert(parts.end(), whole.begin(), whole.end());
    const Curve again = Train(cluster, job("again", "whole", 6, two + "gpipe"));
    parts.insert(parts.end(), again.begin(), again.end());
    EXPECT_EQ(parts, straight);
  }
}

// The job is what `takt eval` submits.
TEST(SplitLayers, ScoreACheckpointAlikeWithEquallyManyLeaves) {
  Cluster cluster(4);
  const SplitJob training{.name = "training",
                          .parallelism = "pipeline: 2, tensor: 2, schedule: 1f1b",
                          .directory = cluster.directory() + "/saved",
                          .steps = 2};
  ASSERT_EQ(Train(cluster, training).size(), 2U);
  const std::string weights = fs::canonical(training.directory + "/latest").string();
  const auto score = [&](const std::string& name, const std::string& parallelism) {
    const SplitJob job{.name = name, .parallelism = parallelism, .steps = 1};
    std::string yaml = absl::StrCat(job.Yaml(), "evaluate: {weights: ", weights, "}\n");
    const std::string train = "data: {train: {path: data.txt, format: bytes}";
    yaml.replace(yaml.find(train), train.size(),
                 train + ", validation: {path: data.txt, format: bytes, batches: 2}");
    cluster.Submit(yaml);
    const v1::Job ended = cluster.AwaitEnd(name);
    EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << name << ": " << ended.reason();
    const std::vector<v1::StepReport> steps = cluster.Steps(name);
    return steps.size() == 1 ? steps.front().loss() : 0;
  };
  const double whole = score("whole", "pipeline: 1, tensor_leaves: 2, schedule: naive");
  EXPECT_GT(whole, 0);
  EXPECT_EQ(score("split", "pipeline: 2, tensor: 2, schedule: 1f1b"), whole);
}

TEST(SharedSequences, TrainAlikeBitForBitWithEquallyManyRanks) {
  Cluster cluster(4);
  for (const auto& [tag, model] : {std::pair("gpt-", kGpt), std::pair("llama-", kLlama)}) {
    SCOPED_TRACE(tag);
    const std::vector<std::string> layouts = {
        "pipeline: 1, context: 2, schedule: naive",
        "pipeline: 2, context: 2, schedule: 1f1b, transport: shm",
        "pipeline: 2, context: 2, schedule: 1f1b, transport: gloo",
        "pipeline: 2, context: 2, schedule: zb-v, recompute: full",
        "pipeline: 2, context: 2, schedule: zb-h1, shard: optimizer",
    };
    Curve first;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const Curve curve = Train(
          cluster,
          {.name = absl::StrCat(std::string(tag), i), .parallelism = layouts[i], .model = model});
      ASSERT_EQ(curve.size(), 6U) << layouts[i];
      EXPECT_LT(curve.back().first, curve.front().first);
      if (i == 0) first = curve;
      EXPECT_EQ(curve, first) << layouts[i];
    }
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// Checkpoints have whole layers, which replicas and context ranks write by turns.
TEST(SharedSequences, GoOnOnAnotherMesh) {
  Cluster cluster(4);
  const auto directory = [&](const std::string& name) {
    return absl::StrCat(cluster.directory(), "/", name);
  };
  const auto go_on = [&](const std::string& name, const std::string& from, int steps,
                         const std::string& parallelism) {
    if (!from.empty()) {
      fs::copy(directory(from), directory(name),
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
    return Train(
        cluster,
        {.name = name, .parallelism = parallelism, .directory = directory(name), .steps = steps});
  };
  const Curve straight = go_on("straight", "", 6, "pipeline: 2, context: 2, schedule: 1f1b");
  ASSERT_EQ(straight.size(), 6U);
  Curve parts = go_on("before", "", 3, "pipeline: 1, context: 2, shard: optimizer");
  const Curve after = go_on("after", "before", 6, "pipeline: 2, context: 2, schedule: zb-h1");
  parts.insert(parts.end(), after.begin(), after.end());
  EXPECT_EQ(parts, straight);
  // With another number of ranks, losses differ in rounding.
  const Curve others = go_on("others", "before", 6, "pipeline: 1, context: 4");
  ASSERT_EQ(others.size(), 3U);
  for (std::size_t i = 0; i < others.size(); ++i)
    EXPECT_NEAR(others[i].first / straight[i + 3].first, 1, 1e-4) << "step " << i + 4;
}

// The processes of 64 ranks take minutes on a small machine (tests/long.sh mesh).
TEST(SplitLayers, DISABLED_SixtyFourRanksOnThreeAxesTrainAsFourReplicasDo) {
  constexpr absl::Duration kLong = absl::Minutes(20);
  Curve four;
  {
    Cluster cluster(4);
    four = Train(cluster, {.name = "four",
                           .parallelism = "data: 4, pipeline: 1, tensor_leaves: 4, "
                                          "schedule: naive"});
    ASSERT_EQ(four.size(), 6U);
    EXPECT_THAT(cluster.StopAll(), IsEmpty());
  }
  Cluster cluster(64);
  const std::string mesh = "data: 4, pipeline: 4, tensor: 4, schedule: ";
  EXPECT_EQ(Train(cluster, {.name = "same-time", .parallelism = mesh + "1f1b"}, kLong), four);
  EXPECT_EQ(Train(cluster, {.name = "zero-bubble", .parallelism = mesh + "zb-h1"}, kLong), four);
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

}  // namespace
}  // namespace takt
