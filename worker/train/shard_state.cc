// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shard_state.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/status.h"
#include "common/program/program.h"

namespace takt::train {
namespace {

constexpr StepId kBeforeSteps(0);  // of what ranks gather once

transport::Collective* ReplicasOf(const TrainerOptions& options, StageId stage) {
  const auto group = options.replicas.find(stage);
  return group == options.replicas.end() ? nullptr : group->second;
}

// Returns the group of a stage, without layers.
ShardState::Group GroupOf(const TrainerOptions& options, StageId stage) {
  const program::Program& program = *options.program;
  // Of two copies the primary one comes first in the group, and shards go by pp rank.
  const bool is_lower = program.pp_rank < program.mirror;
  const bool primary_is_lower = program::IsPrimary(program, stage) == is_lower;
  return {.replicas = ReplicasOf(options, stage),
          .in_reversed_pairs = program.mirror.value() >= 0 && !primary_is_lower,
          .stage = stage,
          .layers = {}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardState>> ShardState::CreateFor(const TrainerOptions& options,
                                                                  const layout::RankLayout& layout,
                                                                  const ParameterStore& parameters,
                                                                  backend::MemoryBackend& memory) {
  if (!program::ShardsOptimizer(*options.program)) return nullptr;
  std::vector<Group> groups;
  for (const auto& [id, stage] : layout.stages) {
    Group& group = groups.emplace_back(GroupOf(options, id));
    for (const layout::StageLayout::LayerPlace& place : stage.layers) {
      const LayerParameters& layer = parameters.Layer(place.layer);
      if (!layer.refs.empty()) group.layers.push_back(&layer);
    }
  }
  if (layout.vocabulary.has_value()) {
    const StageId rows(options.program->num_stages);
    Group& group = groups.emplace_back(
        Group{.replicas = ReplicasOf(options, rows), .stage = rows, .layers = {}});
    const auto last = static_cast<std::int32_t>(options.model->layers.size()) - 1;
    for (const LayerId use : {LayerId(0), LayerId(last)}) {
      if (const LayerParameters* const layer = parameters.Rows(use)) group.layers.push_back(layer);
    }
  }
  for (const Group& group : groups) {
    if (group.replicas != nullptr) continue;
    return absl::InvalidArgumentError(
        "no other rank holds a stage, so none can share the optimizer's state");
  }
  return Create(groups, memory, parameters.gathered());
}

absl::StatusOr<std::unique_ptr<Packing>> ShardState::PackingOf(const Group& group,
                                                               backend::MemoryBackend& memory,
                                                               float* gathered) {
  backend::Stream* const own = memory.stream();
  backend::Stream* const of_group = group.replicas->stream();
  ASSIGN_OR_RETURN(backend::StreamLink to_group, backend::StreamLink::Create(own, of_group));
  ASSIGN_OR_RETURN(backend::StreamLink from_group, backend::StreamLink::Create(of_group, own));
  return std::make_unique<Packing>(
      Packing{&memory, gathered, std::move(to_group), std::move(from_group)});
}

absl::StatusOr<std::unique_ptr<ShardState>> ShardState::Create(const std::vector<Group>& groups,
                                                               backend::MemoryBackend& memory,
                                                               float* gathered) {
  auto state = std::unique_ptr<ShardState>(new ShardState(memory));
  std::int64_t num_blocks = 0;
  for (const Group& group : groups) {
    const std::int64_t first = num_blocks;
    Packing* packing = nullptr;
    if (gathered != nullptr) {
      ASSIGN_OR_RETURN(auto made, PackingOf(group, memory, gathered));
      packing = state->packings_.emplace_back(std::move(made)).get();
    }
    for (const LayerParameters* const parameters : group.layers) {
      const Layer& added = state->layers_.emplace_back(Layer{
          parameters, LayerShards(*parameters, *group.replicas, group.in_reversed_pairs, packing),
          num_blocks, group.stage});
      num_blocks += added.shards.num_blocks();
    }
    state->blocks_of_.push_back({group.replicas, first, num_blocks - first});
  }
  ASSIGN_OR_RETURN(state->blocks_, memory.AllocateHost(static_cast<std::size_t>(
                                       std::max<std::int64_t>(num_blocks, 1) * sizeof(double))));
  return state;
}

LayerShards& ShardState::Of(const LayerParameters& layer) {
  const auto it = std::ranges::find(layers_, &layer, &Layer::parameters);
  TAKT_CHECK(it != layers_.end());
  return it->shards;
}

absl::Status ShardState::SumSquares(backend::Backend& backend) {
  for (const Layer& layer : layers_) {
    RETURN_IF_ERROR(
        layer.shards.SumSquares(backend, BlocksAt(layer.first_block, layer.shards.num_blocks())));
  }
  return absl::OkStatus();
}

absl::Status ShardState::AddSquares(StepId step, std::span<double> entries) {
  // Each block has one owner and is 0 elsewhere, so the sums are exact.
  for (const Blocks& blocks : blocks_of_) {
    if (blocks.count == 0) continue;  // on every rank of the group
    RETURN_IF_ERROR(blocks.replicas->AllReduceSum(step, BlocksAt(blocks.first, blocks.count)));
  }
  for (const Layer& layer : layers_)
    layer.shards.AddSquares(BlocksAt(layer.first_block, layer.shards.num_blocks()), entries);
  return absl::OkStatus();
}

absl::Status ShardState::Unshard(StepId step, StageId stage) {
  for (Layer& layer : layers_) {
    if (layer.stage == stage) RETURN_IF_ERROR(layer.shards.Unshard(step, memory_));
  }
  return absl::OkStatus();
}

absl::Status ShardState::GatherAll() {
  for (Layer& layer : layers_) {
    if (layer.shards.packs()) RETURN_IF_ERROR(layer.shards.GatherWeights(kBeforeSteps));
  }
  return memory_.Synchronize();
}

std::vector<const ParameterRef*> ShardState::Parts() const {
  std::vector<const ParameterRef*> all;
  for (const Layer& layer : layers_) {
    const std::vector<const ParameterRef*> parts = layer.shards.Parts();
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

}  // namespace takt::train
