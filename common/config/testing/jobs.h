// SPDX-License-Identifier: Apache-2.0
// The jobs that tests of plans, assignments and pages begin with.
#pragma once

#include <cstdint>

#include "common/config/job_spec.h"

namespace takt::config {

// Returns a job of a small gpt2 with eight blocks, called j: eight microbatches of two sequences a
// step. It names neither data nor mesh nor schedule.
inline JobSpec SmallGpt2Job() {
  JobSpec job;
  job.name = "j";
  job.model = {.layers = 8,
               .hidden = 64,
               .heads = 4,
               .kv_heads = 4,
               .inner = 256,
               .context = 32,
               .positions = 32,
               .vocab = 256};
  job.global_batch = 16;
  job.microbatch = 2;
  return job;
}

// Returns an emulated job called e whose F, I and W of a layer take 5 ms each. A microbatch is one
// sequence.
inline JobSpec EmulatedJob(int layers, int microbatches, std::int64_t activation_bytes = 1) {
  JobSpec job;
  job.name = "e";
  job.model = {.family = model::Family::kEmulated,
               .layers = layers,
               .context = 1,
               .forward_seconds = 5e-3,
               .input_grad_seconds = 5e-3,
               .weight_grad_seconds = 5e-3,
               .activation_bytes = activation_bytes};
  job.global_batch = microbatches;
  return job;
}

}  // namespace takt::config
