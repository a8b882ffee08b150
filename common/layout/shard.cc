// SPDX-License-Identifier: Apache-2.0
#include "common/layout/shard.h"

#include <algorithm>

#include "common/base/status.h"

namespace takt::layout {
namespace {

std::int64_t BlocksOf(const FloatRun& tensor) {
  return (tensor.count + kShardBlock - 1) / kShardBlock;
}

// Returns where block number `block` of the tensors begins, or where the last one ends.
std::int64_t StartOf(std::span<const FloatRun> tensors, std::int64_t block) {
  for (const FloatRun& tensor : tensors) {
    const std::int64_t blocks = BlocksOf(tensor);
    if (block < blocks) return tensor.first + block * kShardBlock;
    block -= blocks;
  }
  return tensors.back().end();
}

}  // namespace

std::vector<FloatRun> CutIntoShards(std::span<const FloatRun> tensors, int num_ranks) {
  TAKT_CHECK(!tensors.empty() && num_ranks >= 1);
  std::int64_t blocks = 0;
  for (const FloatRun& tensor : tensors) blocks += BlocksOf(tensor);
  std::vector<FloatRun> shards;
  std::int64_t first = tensors.front().first;
  for (int rank = 1; rank <= num_ranks; ++rank) {
    const std::int64_t end = StartOf(tensors, blocks * rank / num_ranks);
    shards.push_back({.first = first, .count = end - first});
    first = end;
  }
  return shards;
}

std::vector<ShardUnit> CutBucket(std::span<const BucketTensor> tensors, int num_ranks) {
  std::vector<ShardUnit> units;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i == 0 || tensors[i].alone || tensors[i - 1].alone) units.push_back({.first = i});
    units.back().tensors.push_back(tensors[i].run);
  }
  for (ShardUnit& unit : units) unit.shards = CutIntoShards(unit.tensors, num_ranks);
  return units;
}

const FloatRun& ShardAt(const ShardUnit& unit, const ShardPlace& place) {
  if (place.index >= 0) return unit.shards[static_cast<std::size_t>(place.index)];
  return *std::ranges::max_element(unit.shards, {}, [&unit](const FloatRun& shard) {
    std::int64_t elements = 0;
    for (const FloatRun& tensor : unit.tensors) elements += PartIn(shard, tensor).count;
    return elements;
  });
}

FloatRun PartIn(const FloatRun& shard, const FloatRun& tensor) {
  const std::int64_t first = std::max(shard.first, tensor.first);
  const std::int64_t end = std::min(shard.end(), tensor.end());
  if (end <= first) return {};
  return {.first = first - tensor.first, .count = end - first};
}

}  // namespace takt::layout
