// SPDX-License-Identifier: Apache-2.0
// Steady bubble 0; P-r versions of the weights on rank r, gradients P-1-r updates old.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/without_flush.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "pipedream",
                         .summary = "1f1b without a flush, each backward followed by an update",
                         .reference = "Narayanan et al. 2019, arXiv:1806.03377",
                         .bubble = "0",
                         .peak = "P-r",
                         .updates = Updates::kEachBackward};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return WithoutFlush(kFamily, options);
}

}  // namespace

Generator PipeDream() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
