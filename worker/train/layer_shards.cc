// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer_shards.h"

#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace takt::train {
namespace {

// Returns where the gradient of a parameter lies in its layer's bucket.
layout::FloatRun RunOf(const LayerParameters& layer, const ParameterRef& ref) {
  return {.first = ref.gradient - layer.gradients.data(), .count = ref.elements()};
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

std::vector<backend::AdamwTensor> LayerShards::Tensors() const {
  std::vector<backend::AdamwTensor> tensors;
  for (const Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
      const ParameterRef& ref = RefOf(unit, i);
      const auto [first, count] = layout::PartIn(Mine(unit), unit.tensors[i]);
      if (ref.m == nullptr || count == 0) continue;
      tensors.push_back({.parameter = ref.weight + first,
                         .previous = ref.previous + first,
                         .gradient = ref.gradient + first,
                         .m = ref.m + first,
                         .v = ref.v + first,
                         .count = count,
                         .decayed = ref.parameter->decayed()});
    }
  }
  return tensors;
}

absl::Status LayerShards::GatherWeights(StepId step) {
  for (const Unit& unit : units_) {
    const ParameterRef& front = RefOf(unit, 0);
    if (front.m == nullptr) continue;  // another layer of this rank owns the table
    // Weights lie behind one another as gradients do.
    const std::int64_t origin = unit.tensors.front().first;
    for (std::size_t i = 0; i < unit.tensors.size(); ++i)
      TAKT_CHECK(RefOf(unit, i).weight - front.weight == unit.tensors[i].first - origin);
    std::vector<std::span<std::byte>> parts;
    for (const layout::FloatRun& shard : unit.shards) {
      parts.push_back(std::as_writable_bytes(
          std::span(front.weight + (shard.first - origin), static_cast<std::size_t>(shard.count))));
    }
    RETURN_IF_ERROR(group_.AllGather(step, parts));
  }
  return absl::OkStatus();
}

}  // namespace takt::train
