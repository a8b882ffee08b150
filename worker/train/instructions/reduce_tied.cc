// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

std::span<float> GradientOf(const ParameterRef& use) {
  return {use.gradient, static_cast<std::size_t>(use.elements())};
}

}  // namespace

// REDUCE_TIED: adds the gradients of the two uses of a tied parameter. If another rank holds the
// other use, sums them with that rank.
Bound BindReduceTied(ProgramState& state, const program::Instruction&) {
  const ParameterStore::TiedUses uses = state.rank.parameters->tied_uses();
  if (uses.own != nullptr && uses.tied != nullptr) {
    backend::MemoryBackend& backend = *state.rank.reduce;
    const backend::Add add{.a = uses.own->gradient,
                           .b = uses.tied->gradient,
                           .output = uses.own->gradient,
                           .count = uses.own->elements()};
    return engine::MakeBound(backend.stream(),
                             [&backend, add](StepId) { return backend.Run(add); });
  }
  const ParameterRef* const use = uses.own != nullptr ? uses.own : uses.tied;
  if (use == nullptr && state.rank.SharesVocabulary()) return engine::NothingToDo();  // no words
  if (use == nullptr) return absl::InvalidArgumentError("this rank holds no tied parameter");
  transport::Collective* const group = state.rank.options.tied_group;
  if (group == nullptr) return absl::InvalidArgumentError("no other rank holds the tied parameter");
  return engine::MakeBound(group->stream(), [group, gradient = GradientOf(*use)](StepId step) {
    return group->AllReduceSum(step, gradient);
  });
}

}  // namespace takt::train
