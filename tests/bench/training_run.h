// SPDX-License-Identifier: Apache-2.0
// Training steps of a planned job, all its ranks in this process, on one device.
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
  // Without the steps that warm up: the first touches memory for the first time.
  std::vector<double> step_seconds;
  std::vector<double> losses;  // of all steps
  StageTimes stages{0};
  // Of a step, summed over ranks, by kind of instruction: what is computed, and the sum of a tied
  // embedding's gradients.
  std::map<std::string, double> op_seconds;
  double optimizer_seconds = 0;  // of a step, what OPT and the norm take on the slowest rank
  // The most that the backends had handed out at the end of a step, whose buffers stay for all
  // steps. What the plan predicts is PlannedJob::device_bytes().
  std::int64_t allocated_bytes = 0;
  double peak_bytes = 0;  // on a GPU allocated_bytes; else what was ever resident of the process
};

// A job for as many ranks as its pipeline has.
struct PlannedJob {
  config::JobSpec job;
  plan::Plan plan;

  MemoryBytes device_bytes() const;  // of all ranks
};

// The ranks take turns on the device, so that what each instruction takes is what it would take on
// a device of its rank's own.  ledger: of the device's memory.  data_root: of a TokenFolder.
absl::StatusOr<TrainingRun> RunTraining(const PlannedJob& planned, const TrainJobOptions& options,
                                        backend::BackendFactory& device,
                                        const backend::MemoryLedger& ledger,
                                        const std::string& data_root);

}  // namespace takt::bench
