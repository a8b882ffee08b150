// SPDX-License-Identifier: Apache-2.0
// Jobs whose ranks share layers, sequences or experts, and their losses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {

inline constexpr char kGpt[] =
    "{family: gpt2, layers: 8, hidden: 16, heads: 4, context: 16, vocab: 256}";
inline constexpr char kLlama[] =
    "{family: llama, layers: 4, hidden: 16, heads: 2, kv_heads: 1, inner: 32, context: 16, "
    "vocab: 256}";

// Trains a small model for a few steps.
struct SplitJob {
  std::string name;
  std::string parallelism;
  std::string model = kGpt;
  std::string directory = {};  // of checkpoints; empty: the job saves none
  int steps = 6;
  std::string precision = "f32";

  std::string Yaml() const {
    return absl::StrCat(
        "name: ", name, "\nmodel: ", model,
        "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
        "\nbatch: {global: 16, microbatch: 1}"
        "\noptimizer: {adamw: {learning_rate: 3.0e-3}, lr_schedule: {warmup_steps: 2}}"
        "\nprecision: ",
        precision, "\nsteps: ", steps, "\nseed: 7\nparallelism: {threads: 1, ", parallelism, "}\n",
        directory.empty() ? "" : absl::StrCat("checkpoint: {directory: ", directory, "}\n"));
  }
};

using Curve = std::vector<std::pair<double, double>>;  // loss and norm of each step

// Trains to the job's end, which must be success. Returns its curve.
inline Curve Train(testing::Cluster& cluster, const SplitJob& job,
                   absl::Duration patience = testing::Cluster::kPatience) {
  cluster.Submit(job.Yaml());
  const v1::Job ended = cluster.AwaitEnd(job.name, patience);
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << job.name << ": " << ended.reason();
  Curve curve;
  for (const v1::StepReport& step : cluster.Steps(job.name))
    curve.emplace_back(step.loss(), step.grad_norm());
  return curve;
}

}  // namespace takt
