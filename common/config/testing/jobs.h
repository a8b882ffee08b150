// SPDX-License-Identifier: Apache-2.0
// The job that tests of plans, assignments and pages begin with.
#pragma once

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

}  // namespace takt::config
