// SPDX-License-Identifier: Apache-2.0
// The bubble of the steady state is 0. Rank r holds P-r versions of the weights, and its gradients
// are P-1-r updates old.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/without_flush.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "pipedream",
    .summary = "1f1b without a flush, each backward followed by an update",
    .reference = "Narayanan et al. 2019, arXiv:1806.03377",
    .bubble = "0",
    .peak = "P-r",
    .idea =
        "1f1b that never drains: every backward is followed by an update, and the next microbatch "
        "uses the newest weights. Each microbatch keeps the weights of its forward for its "
        "backward, P - r versions on rank r.",
    .sizes = "M >= P, V = 1",
    .care =
        "Its result is not the synchronous one: gradients on rank r are P - r - 1 updates old, so "
        "their age differs from rank to rank. Losses are not comparable with those of the other "
        "families. It cannot clip gradients, and it allows neither data-parallel replicas nor tied "
        "embeddings. A validation or a checkpoint empties the pipeline.",
    .updates = Updates::kEachBackward};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return WithoutFlush(kFamily, options);
}

}  // namespace

Generator PipeDream() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
