// SPDX-License-Identifier: Apache-2.0
// Runs training steps of a planned job, with all its ranks in this process and on one device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "tests/bench/stage_times.h"
#include "tests/bench/train_job.h"
#include "worker/backend/backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::bench {

struct TrainingRun {
  // The steps that warm up are left out, because the first one touches memory for the first time.
  std::vector<double> step_seconds;
  std::vector<double> losses;  // of all steps
  StageTimes stages{0};
  // Seconds of a step, summed over ranks, by kind of instruction: compute instructions, and the sum
  // of a tied embedding's gradients.
  std::map<std::string, double> op_seconds;
  double optimizer_seconds = 0;  // of a step: OPT and the norm on the slowest rank
  // The most bytes that the backends had handed out at the end of a step. Buffers stay for all
  // steps. The plan predicts PlannedJob::device_bytes().
  std::int64_t allocated_bytes = 0;
  double peak_bytes = 0;  // on a GPU allocated_bytes, else the peak of the process
};

// A job with a plan for as many ranks as its pipeline has.
struct PlannedJob {
  config::JobSpec job;
  plan::Plan plan;

  MemoryBytes device_bytes() const;  // of all ranks
};

// The ranks take turns on the device, so each instruction takes as long as on a device that its
// rank has alone. ledger: counts the device's memory. data_root: the path of a TokenFolder.
absl::StatusOr<TrainingRun> RunTraining(const PlannedJob& planned, const TrainJobOptions& options,
                                        backend::BackendFactory& device,
                                        const backend::MemoryLedger& ledger,
                                        const std::string& data_root);

}  // namespace takt::bench
