// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <span>

#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/loss_share.h"

namespace takt::train {

// EVAL: sums the loss of a batch of the validation set over all ranks.
Bound BindEval(ProgramState& state, const program::Instruction&) {
  const auto run = [&state, groups = state.rank.Groups()](StepId batch) -> absl::Status {
    ASSIGN_OR_RETURN(const LossShare told,
                     SumOverHolders(batch, state.losses.Share(batch), groups));
    std::array<double, 2> sums{told.sum, static_cast<double>(told.scored)};
    if (groups.pipeline != nullptr) {
      RETURN_IF_ERROR(groups.pipeline->AllReduceSum(batch, std::span<double>(sums)));
    }
    state.evaluated.loss_sum += sums[0];
    state.evaluated.scored += sums[1];
    return absl::OkStatus();
  };
  return engine::MakeBound(nullptr, run);
}

}  // namespace takt::train
