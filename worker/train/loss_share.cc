// SPDX-License-Identifier: Apache-2.0
#include "worker/train/loss_share.h"

#include <array>
#include <span>

#include "common/base/status.h"

namespace takt::train {

absl::StatusOr<LossShare> SumOverHolders(StepId step, LossShare share, const ResultGroups& groups) {
  if (!share.known) return LossShare();
  if (groups.last_stage != nullptr) {
    std::array<double, 2> sums{share.sum, share.halting};
    RETURN_IF_ERROR(groups.last_stage->AllReduceSum(step, std::span<double>(sums)));
    share.sum = sums[0];
    share.halting = sums[1];
  }
  return groups.tells_loss ? share : LossShare();
}

}  // namespace takt::train
