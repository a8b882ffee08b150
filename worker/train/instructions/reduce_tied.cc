// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

// Both uses have the same shard. Of the others' shards the gradients mean nothing.
std::span<float> GradientOf(const ParameterRef& use) {
  return {use.gradient + use.shard.first, static_cast<std::size_t>(use.shard.count)};
}

}  // namespace

// REDUCE_TIED: adds the gradients of the two uses of a tied parameter. If another rank holds the
// other use, sums them with that rank. Where ranks share the optimizer's state, it is of the shard.
Bound BindReduceTied(ProgramState& state, const program::Instruction&) {
  const ParameterStore::TiedUses uses = state.rank.parameters->tied_uses();
  if (uses.own != nullptr && uses.tied != nullptr) {
    backend::MemoryBackend& backend = *state.rank.reduce;
    const std::span<float> own = GradientOf(*uses.own), tied = GradientOf(*uses.tied);
    if (own.empty()) return engine::NothingToDo(backend.stream());
    const backend::Add add{
        .a = own.data(), .b = tied.data(), .output = own.data(), .count = uses.own->shard.count};
    return engine::MakeBound(backend.stream(),
                             [&backend, add](StepId) { return backend.Run(add); });
  }
  const ParameterRef* const use = uses.own != nullptr ? uses.own : uses.tied;
  if (use == nullptr && state.rank.SharesVocabulary()) return engine::NothingToDo();  // no words
  if (use == nullptr) return absl::InvalidArgumentError("this rank holds no tied parameter");
  transport::Collective* const group = state.rank.options.tied_group;
  if (group == nullptr) return absl::InvalidArgumentError("no other rank holds the tied parameter");
  if (use->shard.count == 0) return engine::NothingToDo(group->stream());  // there neither
  return engine::MakeBound(group->stream(), [group, gradient = GradientOf(*use)](StepId step) {
    return group->AllReduceSum(step, gradient);
  });
}

}  // namespace takt::train
