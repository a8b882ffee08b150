// SPDX-License-Identifier: Apache-2.0
// Counts the launches and bytes of a whole training step, from the ops that the trainer gives to
// its backend.
#pragma once

#include "absl/status/statusor.h"
#include "tests/bench/count_ops.h"
#include "tests/bench/train_job.h"

namespace takt::bench {

struct ModelCounts {
  // One block, for one microbatch that adds to gradients.
  OpCount forward, input_grad, weight_grad;
  OpCount microbatch;  // all of such a microbatch
  OpCount rest;        // of a step: what no microbatch does
  // Says how often the ranks that split layers meet, in a block and such a microbatch.
  double meetings = 0;
  double tokens = 0;  // of a microbatch

  OpCount Block() const;
};

// Counts what one rank does, on the meta backend, so no memory is needed. Sums that the ranks which
// split layers take are among its ops; what passes between them is not. options: of a job of one
// rank, whose batch is ignored. tensor: ranks that split layers.
absl::StatusOr<ModelCounts> CountModel(const TrainJobOptions& options, int tensor = 1);

}  // namespace takt::bench
