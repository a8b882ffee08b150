// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/expert_gradients.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/bucket.h"

namespace takt::train {

namespace {

// Adds the leaves of the only replica.
Bound BindSumOfLeaves(ProgramState& state, const LayerParameters& layer) {
  const auto run = [&backend = *state.rank.reduce, &layer](StepId) -> absl::Status {
    float* const bucket = layer.gradients.data();
    float* const first = layer.leaves.Of(bucket, 0);
    for (int leaf = 1; leaf < layer.leaves.count; ++leaf) {
      const bool last = leaf + 1 == layer.leaves.count;
      RETURN_IF_ERROR(backend.Run(backend::Add{.a = first,
                                               .b = layer.leaves.Of(bucket, leaf),
                                               .output = last ? bucket : first,
                                               .count = std::ssize(layer.gradients)}));
    }
    return absl::OkStatus();
  };
  return engine::MakeBound(state.rank.reduce->stream(), run);
}

}  // namespace

// REDUCE_GRAD: sums the gradients of one layer, or of rows, over all ranks that hold them, and over
// their leaves. Where these share the optimizer's state, each gets the sum of its shard.
Bound BindReduceGrad(ProgramState& state, const program::Instruction& instruction) {
  transport::Collective* const group = state.rank.ReplicasOf(instruction.stage);
  if (group == nullptr && state.rank.leaves() == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("no other rank holds stage ", instruction.stage.value()));
  }
  const LayerParameters* const layer = BucketOf(state, instruction);
  // Where ranks share the vocabulary, one may have no words, and a layer no parameters but tables.
  // Then its replicas have none either.
  if (layer == nullptr && state.rank.SharesVocabulary()) return engine::NothingToDo();
  if (layer == nullptr) return absl::InvalidArgumentError("this rank does not hold its layer");
  if (group == nullptr) return BindSumOfLeaves(state, *layer);
  if (ShardState* const all = state.rank.shards.get()) {
    return engine::MakeBound(group->stream(), [&shards = all->Of(*layer)](StepId step) {
      return shards.ReduceGradients(step);
    });
  }
  if (state.rank.experts != nullptr && !state.rank.experts->shapes_only()) {
    ASSIGN_OR_RETURN(std::unique_ptr<GradientSums> sums,
                     GradientSums::Create(state.rank.GradientGroupsOf(instruction.stage)));
    return engine::MakeBound(group->stream(), [layer, sums = std::move(sums)](StepId step) {
      return sums->Sum(step, *layer);
    });
  }
  const auto run = [group, layer](StepId step) {
    return group->AllReduceTerms(step, layer->gradients, layer->leaves);
  };
  return engine::MakeBound(group->stream(), run);
}

}  // namespace takt::train
