// SPDX-License-Identifier: Apache-2.0
// A small job that saves often, for faults that may not change its losses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt::testing {

struct SmallJob {
  std::string name = "j";
  int steps = 800;
  int save_every = 20;  // into the directory `checkpoints`
  std::string checkpoints = "c";
  std::string parallelism = "pipeline: 2";
  std::string more;  // fields of the section `checkpoint`, each with a comma in front

  std::string Yaml() const {
    return absl::StrCat(
        "name: ", name,
        "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
        "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
        "\nbatch: {global: 8, microbatch: 2}\nsteps: ",
        steps, "\nseed: 7\nparallelism: {threads: 1, schedule: 1f1b, ", parallelism,
        "}\ncheckpoint: {directory: ", checkpoints, ", every_steps: ", save_every, more, "}\n");
  }
};

// Returns the loss of each step of a job that ended. The steps must be 1, 2, ... without gap or
// repetition.
inline std::vector<double> LossesOf(Cluster& cluster, const std::string& job) {
  std::vector<double> losses;
  for (const v1::StepReport& step : cluster.Steps(job)) {
    losses.push_back(step.loss());
    EXPECT_EQ(step.step(), static_cast<std::int64_t>(losses.size()));
  }
  return losses;
}

// Returns the losses of the job if nothing happens to it.
inline std::vector<double> UndisturbedLosses(const SmallJob& job, int num_workers = 2) {
  Cluster cluster(num_workers);
  cluster.Submit(job.Yaml());
  EXPECT_EQ(cluster.AwaitEnd(job.name).state(), v1::JOB_STATE_SUCCEEDED);
  return LossesOf(cluster, job.name);
}

}  // namespace takt::testing
