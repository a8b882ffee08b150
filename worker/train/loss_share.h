// SPDX-License-Identifier: Apache-2.0
// How the loss of a step gets from the ranks of the last stage to all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/transport/collective.h"

namespace takt::train {

// A rank of the last stage knows this about the step's loss. It is empty on other ranks.
struct LossShare {
  double sum = 0;  // the token losses of this rank's microbatches, added in ascending order
  // Where its replica has several leaves, the sum of each, and `sum` is 0.
  std::vector<double> leaf_sums = {};
  std::int64_t scored = 0;  // scored tokens of the global batch, equal on all data-parallel ranks
  double halting = 0;       // what ranks were asked for (halt_request.h); it travels with the loss
  bool known = false;
};

// The ranks over which results of a step are summed.
struct ResultGroups {
  // All ranks that hold the last stage. Null: only one holds it, or this rank does not.
  transport::Collective* last_stage = nullptr;
  // True for the one rank, among those of this pipeline that hold the last stage, that contributes
  // the loss to the pipeline's sum.
  bool tells_loss = true;
  transport::Collective* pipeline = nullptr;  // null: one rank
  // The ranks that split layers or share experts with this one, all of which know the loss. Null:
  // there are none.
  transport::Collective* tensor = nullptr;
};

// Returns the share summed over all ranks that hold the last stage. It is empty on all of them
// except one of each pipeline, so that a sum over the pipeline counts it once. A share that is not
// known is dropped, including its `halting`, because the other pipelines would not learn of that in
// the same step.
absl::StatusOr<LossShare> SumOverHolders(StepId step, LossShare share, const ResultGroups& groups);

}  // namespace takt::train
