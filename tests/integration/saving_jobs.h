// SPDX-License-Identifier: Apache-2.0
// Jobs of real daemons that save checkpoints, for tests of what is saved and loaded.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/directory.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {

inline constexpr char kGpt[] =
    "{family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}";
inline constexpr char kLlama[] =
    "{family: llama, layers: 4, hidden: 16, heads: 2, kv_heads: 1, inner: 32, context: 16, "
    "vocab: 256}";

struct TrainingJob {
  std::string name;
  std::string model = kGpt;
  std::string parallelism = "pipeline: 2, schedule: 1f1b";
  std::string directory;
  std::string precision = "f32";
  int steps = 20;
  int every_steps = 5;
  int keep = 2;  // more where steps are looked at while the job trains
  std::string optimizer = "adamw: {learning_rate: 3.0e-3}";

  std::string Yaml() const {
    return absl::StrCat("name: ", name, "\nmodel: ", model,
                        "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
                        "\nbatch: {global: 8, microbatch: 1}"
                        "\noptimizer: {",
                        optimizer,
                        ", lr_schedule: {warmup_steps: 2, decay: cosine, decay_steps: 100}}"
                        "\nprecision: ",
                        precision, "\nsteps: ", steps, "\nseed: 7\nparallelism: {threads: 1, ",
                        parallelism, "}\ncheckpoint: {directory: ", directory,
                        ", every_steps: ", every_steps, ", keep: ", keep, ", in_memory: off}\n");
  }
};

struct Step {
  std::int64_t step;
  double loss, grad_norm;
  bool operator==(const Step&) const = default;
};

inline void PrintTo(const Step& step, std::ostream* out) {
  *out << step.step << ": " << step.loss << ", " << step.grad_norm;
}

class SavingJobs : public ::testing::Test {
 protected:
  std::vector<Step> Curve(const std::string& name) {
    std::vector<Step> curve;
    for (const v1::StepReport& step : cluster_.Steps(name))
      curve.push_back({step.step(), step.loss(), step.grad_norm()});
    return curve;
  }
  // To its end, which must be success.
  std::vector<Step> Train(const TrainingJob& job) {
    cluster_.Submit(job.Yaml());
    const v1::Job ended = cluster_.AwaitEnd(job.name);
    EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << job.name << ": " << ended.reason();
    return Curve(job.name);
  }
  std::string Directory(const std::string& name) const {
    return absl::StrCat(cluster_.directory(), "/", name);
  }
  // `latest` is there and complete, and every byte is what its manifest says. While a job trains,
  // `latest` names another step a moment later: this checks the one that it names now.
  static void ExpectLatest(const std::string& directory) {
    const auto step =
        checkpoint::StepFiles::Open(std::filesystem::canonical(directory + "/latest"));
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->VerifyAll(), absl::OkStatus());
  }

  testing::Cluster cluster_{4};
};

inline std::vector<Step> From(const std::vector<Step>& curve, std::int64_t first) {
  std::vector<Step> rest;
  for (const Step& step : curve) {
    if (step.step >= first) rest.push_back(step);
  }
  return rest;
}

}  // namespace takt
