// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <utility>

#include "common/program/remove_barrier.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/bucket.h"

namespace takt::train {

namespace {

// The uses of rows show the newest ones, so foreseen rows have an object of their own.
struct ForeseenRows {
  LayerParameters rows;
  std::optional<LayerShards> shards;
};

Bound BindForeseenRows(ProgramState& state, const LayerParameters& layer, StageId stage) {
  const std::optional<ParameterRef>& foreseen = state.rank.vocabulary->foreseen_table;
  if (!foreseen.has_value()) return absl::InvalidArgumentError("no rows are foreseen here");
  transport::Collective& replicas = *state.rank.ReplicasOf(stage);
  auto gathered = std::make_unique<ForeseenRows>();
  gathered->rows = layer;
  gathered->rows.refs = {*foreseen};
  gathered->shards.emplace(gathered->rows, replicas);
  return engine::MakeBound(replicas.stream(), [gathered = std::move(gathered)](StepId step) {
    return gathered->shards->GatherWeights(step);
  });
}

}  // namespace

// GATHER_WEIGHTS: copies the new weights of one layer, or of rows, from the ranks that updated
// them, and packs those of which this rank keeps only a shard in f32.
Bound BindGatherWeights(ProgramState& state, const program::Instruction& instruction) {
  const LayerParameters* const layer = BucketOf(state, instruction);
  if (layer == nullptr && state.rank.SharesVocabulary()) return engine::NothingToDo();
  if (layer == nullptr) return absl::InvalidArgumentError("this rank does not hold its layer");
  const bool of_rows = instruction.stage.value() == state.program.num_stages;
  if (of_rows && program::GathersForeseen(instruction, state.program))
    return BindForeseenRows(state, *layer, instruction.stage);
  LayerShards& shards = state.rank.shards->Of(*layer);
  return engine::MakeBound(state.rank.ReplicasOf(instruction.stage)->stream(),
                           [&shards](StepId step) { return shards.GatherWeights(step); });
}

}  // namespace takt::train
