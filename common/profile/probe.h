// SPDX-License-Identifier: Apache-2.0
// The job that measures another job's layers. It is an ordinary job of a few steps.
#pragma once

#include <cstdint>

#include "common/config/job_spec.h"

namespace takt::profile {

struct ProbeOptions {
  int num_ranks = 1;               // those that the job will have on one host, all busy at once
  double target_seconds = 3;       // of all steps, about
  double flops_per_second = 1e11;  // of a rank: determines the number of steps
};

// Returns a job whose model has a few of the job's blocks. Each rank is a data-parallel copy with
// three stages: the embedding, the blocks, the head. So its trace tells their times apart, with all
// ranks busy. The layers recompute what the job names first, and nothing if it leaves that open.
// It saves nothing and validates nothing. Precondition: the job is not of the emulated family.
config::JobSpec ProbeJob(const config::JobSpec& job, const ProbeOptions& options);

// Returns an emulated job of `num_ranks` stages that pass on messages of so many bytes. Its layers
// take next to nothing, so its trace tells what messages take. It keeps the job's transport and
// threads. Precondition: two ranks or more.
config::JobSpec MessageProbeJob(const config::JobSpec& job, int num_ranks, std::int64_t bytes);

}  // namespace takt::profile
