// SPDX-License-Identifier: Apache-2.0
#include "worker/train/step_losses.h"

#include <algorithm>

#include "common/base/status.h"

namespace takt::train {

absl::StatusOr<StepLosses> StepLosses::Create(backend::Backend& backend, const Options& options) {
  const auto count = static_cast<std::size_t>(kSteps * options.num_microbatches);
  ASSIGN_OR_RETURN(backend::Buffer memory, backend.AllocateHost(count * sizeof(Microbatch)));
  return StepLosses(options, std::move(memory));
}

StepLosses::Microbatch* StepLosses::At(std::int64_t remainder, MicrobatchId microbatch) const {
  return reinterpret_cast<Microbatch*>(memory_.data()) + remainder * options_.num_microbatches +
         microbatch.value();
}

LossShare StepLosses::Share(StepId step) const {
  if (!options_.holds_last_stage) return {};
  LossShare share{.known = true};
  if (options_.leaves > 1) share.leaf_sums.resize(static_cast<std::size_t>(options_.leaves));
  const std::int64_t of_leaf = options_.num_microbatches / options_.leaves;
  for (MicrobatchId m(0); m.value() < options_.num_microbatches; ++m) {
    const Microbatch& loss = *At(step.value() % kSteps, m);
    double& sum = share.leaf_sums.empty()
                      ? share.sum
                      : share.leaf_sums[static_cast<std::size_t>(m.value() / of_leaf)];
    sum += loss.sum;
    // Each count is that of the microbatch, or that of the whole batch. It is 0 for a microbatch of
    // the other copy.
    share.scored = options_.updates_microbatches ? share.scored + loss.scored
                                                 : std::max(share.scored, loss.scored);
  }
  return share;
}

}  // namespace takt::train
