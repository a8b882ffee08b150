// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer_shards.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"

namespace takt::train {
namespace {

static_assert(layout::kShardBlock == backend::kSquaresPerBlock);

std::int64_t BlocksOf(std::int64_t elements) {
  return (elements + backend::kSquaresPerBlock - 1) / backend::kSquaresPerBlock;
}

// Returns where the gradient of a parameter lies in its layer's bucket.
layout::FloatRun RunOf(const LayerParameters& layer, const ParameterRef& ref) {
  return {.first = ref.gradient - layer.gradients.data(), .count = ref.elements()};
}

// False: another layer of this rank owns the weight, and updates it.
bool IsUpdatedHere(const ParameterRef& ref) { return ref.updated; }

// Returns how many blocks of a parameter are in the norm. A tied copy has none.
std::int64_t NormBlocksOf(const ParameterRef& ref) {
  return ref.norm_index < 0 ? 0 : BlocksOf(ref.elements());
}

}  // namespace

LayerShards::LayerShards(const LayerParameters& layer, transport::Collective& group)
    : layer_(layer), group_(group) {
  for (std::size_t i = 0; i < layer.refs.size(); ++i) {
    const bool alone = layer.refs[i].parameter->by_word;
    if (i == 0 || alone || layer.refs[i - 1].parameter->by_word) units_.push_back({.first_ref = i});
    units_.back().tensors.push_back(RunOf(layer, layer.refs[i]));
  }
  for (Unit& unit : units_) unit.shards = layout::CutIntoShards(unit.tensors, group.size());
}

absl::Status LayerShards::ReduceGradients(StepId step) {
  for (const Unit& unit : units_) {
    std::vector<std::span<float>> parts;
    for (const layout::FloatRun& shard : unit.shards) {
      parts.push_back(layer_.gradients.subspan(static_cast<std::size_t>(shard.first),
                                               static_cast<std::size_t>(shard.count)));
    }
    RETURN_IF_ERROR(group_.ReduceScatterSum(step, parts));
  }
  return absl::OkStatus();
}

std::int64_t LayerShards::num_blocks() const {
  std::int64_t blocks = 0;
  for (const ParameterRef& ref : layer_.refs) blocks += NormBlocksOf(ref);
  return blocks;
}

absl::Status LayerShards::SumSquares(backend::Backend& backend, std::span<double> blocks) const {
  std::ranges::fill(blocks, 0.0);
  double* of_ref = blocks.data();
  for (const Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
      const ParameterRef& ref = RefOf(unit, i);
      const auto [first, count] = layout::PartIn(Mine(unit), unit.tensors[i]);
      if (ref.norm_index >= 0 && count > 0) {
        RETURN_IF_ERROR(backend.Run(
            backend::SumOfSquares{.input = ref.gradient + first,
                                  .count = count,
                                  .block_sums = of_ref + first / backend::kSquaresPerBlock}));
      }
      of_ref += NormBlocksOf(ref);
    }
  }
  return absl::OkStatus();
}

void LayerShards::AddSquares(std::span<const double> blocks, std::span<double> entries) const {
  if (!layer_.primary) return;
  auto next = blocks.begin();
  for (const ParameterRef& ref : layer_.refs) {
    if (ref.norm_index < 0) continue;
    std::size_t entry = static_cast<std::size_t>(ref.norm_index);
    // Runs of words begin where a block begins.
    for (const model::VocabularyBlock& run : ref.Runs()) {
      const auto end = next + BlocksOf(run.words * ref.columns());
      entries[entry++] = std::accumulate(next, end, 0.0);
      next = end;
    }
  }
}

std::vector<LayerShards::Part> LayerShards::Parts() const {
  std::vector<Part> parts;
  for (const Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
      const ParameterRef& ref = RefOf(unit, i);
      const auto [first, count] = layout::PartIn(Mine(unit), unit.tensors[i]);
      if (IsUpdatedHere(ref) && count > 0) parts.push_back({&ref, first, count});
    }
  }
  return parts;
}

absl::Status LayerShards::GatherWeights(StepId step) {
  for (const Unit& unit : units_) {
    const ParameterRef& front = RefOf(unit, 0);
    if (!IsUpdatedHere(front)) continue;
    // Weights lie behind one another as gradients do.
    const std::int64_t origin = unit.tensors.front().first;
    for (std::size_t i = 0; i < unit.tensors.size(); ++i)
      TAKT_CHECK(RefOf(unit, i).weight - front.weight == unit.tensors[i].first - origin);
    std::vector<std::span<float>> parts;
    for (const layout::FloatRun& shard : unit.shards) {
      parts.emplace_back(front.weight + (shard.first - origin),
                         static_cast<std::size_t>(shard.count));
    }
    RETURN_IF_ERROR(group_.AllGatherParts(step, parts));
  }
  return absl::OkStatus();
}

}  // namespace takt::train
