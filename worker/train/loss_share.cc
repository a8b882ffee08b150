// SPDX-License-Identifier: Apache-2.0
#include "worker/train/loss_share.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace takt::train {
namespace {

// Adds the leaves of all replicas one by one, as if each were a replica. Nobody adds anything but 0
// to another's leaf.
absl::Status SumLeaves(StepId step, LossShare& share, transport::Collective* group) {
  const std::vector<double> mine = std::exchange(share.leaf_sums, {});
  const std::size_t size = group == nullptr ? 1 : static_cast<std::size_t>(group->size());
  const std::size_t index = group == nullptr ? 0 : static_cast<std::size_t>(group->index());
  std::vector<double> sums(size * mine.size() + 1);
  std::ranges::copy(mine, sums.begin() + static_cast<std::ptrdiff_t>(index * mine.size()));
  sums.back() = share.halting;
  if (group != nullptr) RETURN_IF_ERROR(group->AllReduceSum(step, std::span<double>(sums)));
  share.halting = sums.back();
  sums.pop_back();
  for (const double leaf : sums) share.sum += leaf;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LossShare> SumOverHolders(StepId step, LossShare share, const ResultGroups& groups) {
  if (!share.known) return LossShare();
  if (!share.leaf_sums.empty()) {
    RETURN_IF_ERROR(SumLeaves(step, share, groups.last_stage));
  } else if (groups.last_stage != nullptr) {
    std::array<double, 2> sums{share.sum, share.halting};
    RETURN_IF_ERROR(groups.last_stage->AllReduceSum(step, std::span<double>(sums)));
    share.sum = sums[0];
    share.halting = sums[1];
  }
  return groups.tells_loss ? share : LossShare();
}

}  // namespace takt::train
