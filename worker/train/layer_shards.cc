// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer_shards.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

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

std::vector<layout::ShardUnit> ShardUnitsOf(const LayerParameters& layer, int num_ranks) {
  std::vector<layout::BucketTensor> bucket;
  for (const ParameterRef& ref : layer.refs)
    bucket.push_back({.run = RunOf(layer, ref), .alone = ref.parameter->by_word});
  return layout::CutBucket(bucket, num_ranks);
}

LayerShards::LayerShards(const LayerParameters& layer, transport::Collective& group,
                         bool in_reversed_pairs, Packing* packing)
    : layer_(layer), group_(group), units_(ShardUnitsOf(layer, group.size())), packing_(packing) {
  for (layout::ShardUnit& unit : units_) {
    for (std::size_t i = 0; in_reversed_pairs && i + 1 < unit.shards.size(); i += 2)
      std::swap(unit.shards[i], unit.shards[i + 1]);
    const layout::FloatRun& mine = unit.shards[static_cast<std::size_t>(group.index())];
    for (std::size_t i = 0; i < unit.tensors.size(); ++i)
      TAKT_CHECK(layout::PartIn(mine, unit.tensors[i]) == layer.refs[unit.first + i].shard);
  }
}

absl::Status LayerShards::ReduceGradients(StepId step) {
  for (const layout::ShardUnit& unit : units_) {
    std::vector<std::span<float>> parts;
    for (const layout::FloatRun& shard : unit.shards) {
      parts.push_back(layer_.gradients.subspan(static_cast<std::size_t>(shard.first),
                                               static_cast<std::size_t>(shard.count)));
    }
    RETURN_IF_ERROR(group_.ReduceScatterTerms(step, parts, layer_.leaves));
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
  for (const ParameterRef& ref : layer_.refs) {
    const auto [first, count] = ref.shard;
    if (ref.norm_index >= 0 && count > 0 && !ref.parameter->balances) {
      RETURN_IF_ERROR(backend.Run(
          backend::SumOfSquares{.input = ref.gradient + first,
                                .count = count,
                                .block_sums = of_ref + first / backend::kSquaresPerBlock}));
    }
    of_ref += NormBlocksOf(ref);
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

std::vector<const ParameterRef*> LayerShards::Parts() const {
  std::vector<const ParameterRef*> parts;
  for (const ParameterRef& ref : layer_.refs) {
    if (IsUpdatedHere(ref) && ref.shard.count > 0) parts.push_back(&ref);
  }
  return parts;
}

absl::Status LayerShards::GatherWeights(StepId step) {
  for (const layout::ShardUnit& unit : units_) {
    if (!IsUpdatedHere(layer_.refs[unit.first])) continue;
    RETURN_IF_ERROR(PacksSome(RefsOf(unit)) ? GatherAndPack(step, unit) : Gather(step, unit));
  }
  return absl::OkStatus();
}

bool LayerShards::packs() const { return PacksSome(layer_.refs); }

bool LayerShards::PacksSome(std::span<const ParameterRef> refs) const {
  const auto is_packed = [](const ParameterRef& ref) { return ref.weight == nullptr; };
  return packing_ != nullptr && std::ranges::any_of(refs, is_packed);
}

absl::Status LayerShards::Unshard(StepId step, backend::MemoryBackend& memory) {
  for (const layout::ShardUnit& unit : units_) {
    if (PacksSome(RefsOf(unit))) {
      RETURN_IF_ERROR(GatherAndPack(step, unit));
      continue;
    }
    for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
      const ParameterRef& ref = layer_.refs[unit.first + i];
      const auto [first, count] = ref.shard;
      if (count == 0) continue;
      RETURN_IF_ERROR(memory.Run(
          backend::Copy{.input = ref.kept, .output = ref.weight + first, .count = count}));
    }
    RETURN_IF_ERROR(Gather(step, unit));
  }
  return absl::OkStatus();
}

absl::Status LayerShards::Gather(StepId step, const layout::ShardUnit& unit) {
  const std::span<const ParameterRef> refs = RefsOf(unit);
  // Weights lie behind one another as gradients do.
  const std::int64_t origin = unit.tensors.front().first;
  for (std::size_t i = 0; i < refs.size(); ++i)
    TAKT_CHECK(refs[i].weight - refs.front().weight == unit.tensors[i].first - origin);
  return GatherAt(step, unit, refs.front().weight);
}

absl::Status LayerShards::GatherAndPack(StepId step, const layout::ShardUnit& unit) {
  const std::span<const ParameterRef> refs = RefsOf(unit);
  backend::MemoryBackend& memory = *packing_->memory;
  const auto gathered = [&](std::size_t i) {
    return packing_->room + (unit.tensors[i].first - unit.tensors.front().first);
  };
  RETURN_IF_ERROR(packing_->from_group.Pass());
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const auto [first, count] = refs[i].shard;
    if (count == 0) continue;
    RETURN_IF_ERROR(memory.Run(backend::Copy{
        .input = refs[i].shard_weights(), .output = gathered(i) + first, .count = count}));
  }
  RETURN_IF_ERROR(packing_->to_group.Pass());
  RETURN_IF_ERROR(GatherAt(step, unit, packing_->room));
  RETURN_IF_ERROR(packing_->from_group.Pass());
  for (std::size_t i = 0; i < refs.size(); ++i) {
    RETURN_IF_ERROR(
        refs[i].weight == nullptr
            ? ParameterStore::PackFrom(memory, gathered(i), refs[i])
            : memory.Run(backend::Copy{
                  .input = gathered(i), .output = refs[i].weight, .count = refs[i].elements()}));
  }
  return packing_->to_group.Pass();
}

absl::Status LayerShards::GatherAt(StepId step, const layout::ShardUnit& unit, float* begin) {
  const std::int64_t origin = unit.tensors.front().first;
  std::vector<std::span<float>> parts;
  for (const layout::FloatRun& shard : unit.shards)
    parts.emplace_back(begin + (shard.first - origin), static_cast<std::size_t>(shard.count));
  return group_.AllGatherParts(step, parts);
}

}  // namespace takt::train
