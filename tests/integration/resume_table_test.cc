// SPDX-License-Identifier: Apache-2.0
// Resumes a job from the checkpoint of each of three meshes on each of the three. The losses must
// be those of a job that was never stopped.
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
namespace fs = std::filesystem;

constexpr int kSteps = 8, kStoppedAfter = 4;

struct Mesh {
  std::string name, parallelism;
  // Meshes of one arithmetic promise equal bits. Others differ in rounding (docs/numerics.md).
  int arithmetic = 0;
};

std::vector<Mesh> Meshes() {
  return {{"long", "pipeline: 4, tensor_leaves: 2, schedule: 1f1b", 0},
          {"split", "pipeline: 2, tensor: 2, schedule: zb-h1", 0},
          {"shared", "pipeline: 1, data: 2, context: 2, shard: optimizer, schedule: 1f1b", 1}};
}

struct Job {
  std::string name;
  std::string parallelism;
  std::string directory;  // of checkpoints
  int steps = kSteps;

  std::string Yaml() const {
    return absl::StrCat(
        "name: ", name,
        "\nmodel: {family: llama, layers: 4, hidden: 16, heads: 2, kv_heads: 1, inner: 32, "
        "context: 16, vocab: 256}"
        "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
        "\nbatch: {global: 8, microbatch: 1}"
        "\noptimizer: {adamw: {learning_rate: 3.0e-3}, lr_schedule: {warmup_steps: 2}}"
        "\nsteps: ",
        steps, "\nseed: 7\nparallelism: {threads: 1, ", parallelism,
        "}\ncheckpoint: {directory: ", directory, ", in_memory: off}\n");
  }
};

using Curve = std::vector<std::pair<double, double>>;  // loss and norm of each step

class ResumeTable : public ::testing::Test {
 protected:
  // Trains to the job's end, which must be success. from: a job that goes before this one; empty:
  // none.
  Curve Train(const std::string& name, const std::string& from, const Mesh& mesh, int steps) {
    const Job job{.name = name,
                  .parallelism = mesh.parallelism,
                  .directory = Directory(name),
                  .steps = steps};
    if (!from.empty()) {
      fs::copy(Directory(from), job.directory,
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
    cluster_.Submit(job.Yaml());
    const v1::Job ended = cluster_.AwaitEnd(name);
    EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << name << ": " << ended.reason();
    Curve curve;
    for (const v1::StepReport& step : cluster_.Steps(name))
      curve.emplace_back(step.loss(), step.grad_norm());
    return curve;
  }
  std::string Directory(const std::string& name) const {
    return absl::StrCat(cluster_.directory(), "/", name);
  }

  Cluster cluster_{4};
};

void ExpectEqualButForRounding(const Curve& curve, const Curve& expected) {
  ASSERT_EQ(curve.size(), expected.size());
  for (std::size_t i = 0; i < curve.size(); ++i) {
    EXPECT_NEAR(curve[i].first / expected[i].first, 1, 1e-4) << i;
    EXPECT_NEAR(curve[i].second / expected[i].second, 1, 1e-2) << i;
  }
}

TEST_F(ResumeTable, EachMeshGoesOnFromTheCheckpointsOfEach) {
  for (const Mesh& before : Meshes()) {
    const Curve undisturbed = Train(absl::StrCat(before.name, "-all"), "", before, kSteps);
    ASSERT_EQ(undisturbed.size(), static_cast<std::size_t>(kSteps));
    const std::string stopped = absl::StrCat(before.name, "-stopped");
    EXPECT_EQ(Train(stopped, "", before, kStoppedAfter),
              Curve(undisturbed.begin(), undisturbed.begin() + kStoppedAfter));
    const Curve expected(undisturbed.begin() + kStoppedAfter, undisturbed.end());
    for (const Mesh& after : Meshes()) {
      SCOPED_TRACE(absl::StrCat(before.name, " to ", after.name));
      const Curve rest =
          Train(absl::StrCat(before.name, "-to-", after.name), stopped, after, kSteps);
      if (before.arithmetic == after.arithmetic) {
        EXPECT_EQ(rest, expected);
      } else {
        ExpectEqualButForRounding(rest, expected);
      }
    }
  }
}

}  // namespace
}  // namespace takt
