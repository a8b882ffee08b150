// SPDX-License-Identifier: Apache-2.0
// The loss of a step on its way from the ranks of the last stage to all ranks.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/transport/collective.h"

namespace takt::train {

// What the ranks of the last stage know of the step's loss; empty elsewhere.
struct LossShare {
  double sum = 0;           // token losses of this rank's microbatches, added in ascending order
  std::int64_t scored = 0;  // scored tokens of the global batch, equal on all data-parallel ranks
  double halting = 0;       // ranks that were asked to halt: it travels with the loss
  bool known = false;
};

// The ranks over which results of a step are summed.
struct ResultGroups {
  transport::Collective* last_stage = nullptr;  // all that hold it; null: one, or not this rank
  // Of the ranks of this pipeline that hold the last stage, this one tells the pipeline.
  bool tells_loss = true;
  transport::Collective* pipeline = nullptr;  // null: one rank
};

// The share summed over all ranks that hold the last stage; empty on all of them but one of each
// pipeline, so that a sum over the pipeline counts it once. Where it is not known it is dropped
// with what it says of halting: the other pipelines would not learn of that in the same step.
absl::StatusOr<LossShare> SumOverHolders(StepId step, LossShare share, const ResultGroups& groups);

}  // namespace takt::train
