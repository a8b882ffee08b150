// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/bucket.h"

namespace takt::train {

// GATHER_WEIGHTS: copies the new weights of one layer, or of rows, from the ranks that updated
// them, and packs those of which this rank keeps only a shard in f32.
Bound BindGatherWeights(ProgramState& state, const program::Instruction& instruction) {
  const LayerParameters* const layer = BucketOf(state, instruction);
  if (layer == nullptr && state.rank.SharesVocabulary()) return engine::NothingToDo();
  if (layer == nullptr) return absl::InvalidArgumentError("this rank does not hold its layer");
  LayerShards& shards = state.rank.shards->Of(*layer);
  return engine::MakeBound(state.rank.ReplicasOf(instruction.stage)->stream(),
                           [&shards](StepId step) { return shards.GatherWeights(step); });
}

}  // namespace takt::train
