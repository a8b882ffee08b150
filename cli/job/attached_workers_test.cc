// SPDX-License-Identifier: Apache-2.0
#include "cli/job/attached_workers.h"

#include "cli/job/measure.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(OptionsForWorkers, DrainedWorkersKeepTheirShareOfTheHost) {
  std::vector<v1::Worker> workers(4);
  for (v1::Worker& worker : workers) {
    worker.set_state(v1::WORKER_STATE_IDLE);
    worker.set_host("h");
    worker.set_cores(4);
  }
  workers[2].set_drained(true);
  workers[3].set_state(v1::WORKER_STATE_LOST);
  const config::JobSpec job;
  const absl::StatusOr<plan::PlanOptions> options = OptionsForWorkers(job, workers);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->max_workers, 2);
  EXPECT_EQ(options->host.threads, 1);
  EXPECT_EQ(options->host.workers, 3);
  // No short job waits for them.
  for (const profile::Conditions& conditions : ConditionsOf(job, *options))
    EXPECT_LE(conditions.ranks_per_host, 2);
}

TEST(OptionsForWorkers, LeavesOutGpusThatDoNotMultiplyAsTheJobDoes) {
  std::vector<v1::Worker> workers(2);
  for (v1::Worker& worker : workers) {
    worker.set_state(v1::WORKER_STATE_IDLE);
    worker.mutable_device()->set_name("NVIDIA A100");
    worker.mutable_device()->set_compute_capability("8.0");
  }
  workers[1].mutable_device()->set_compute_capability("9.0");
  config::JobSpec job;
  job.model.family = model::Family::kGpt2;
  EXPECT_EQ(OptionsForWorkers(job, workers)->max_workers, 2);
  job.fp8 = model::Fp8Recipe::kTensor;
  EXPECT_EQ(OptionsForWorkers(job, workers)->max_workers, 1);
  workers.pop_back();
  EXPECT_EQ(OptionsForWorkers(job, workers).status().message(),
            "precision is fp8: needs a GPU of compute capability 8.9 or newer, and NVIDIA A100 has "
            "8.0; use precision: bf16, or parallelism.device: cpu");
}

}  // namespace
}  // namespace takt::cli
