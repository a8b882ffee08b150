// SPDX-License-Identifier: Apache-2.0
// Cuts the parameters of a layer among the ranks that sum its gradients. Each of them then has the
// optimizer's state of its shard alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace takt::layout {

// A parameter is cut only at multiples of so many elements. These are the blocks over which
// backend::SumOfSquares adds, so each block of the gradient norm has one owner.
inline constexpr std::int64_t kShardBlock = 4096;

// The floats [first, first + count) of a layer's bucket of gradients.
struct FloatRun {
  std::int64_t first = 0, count = 0;

  std::int64_t end() const { return first + count; }
  bool operator==(const FloatRun&) const = default;
};

// Returns the shards of so many ranks: a run each, in ascending order. Together they reach from the
// first tensor to the end of the last one, with what lies between tensors. The ranks get equally
// many blocks, give or take one, so a rank may get none.
// tensors: at least one, in ascending order.
std::vector<FloatRun> CutIntoShards(std::span<const FloatRun> tensors, int num_ranks);

// Says which of the ranks that share the optimizer's state of some layers a rank is. The default
// has all of it. Index -1 stands for any of them: it has the largest shard of each unit.
struct ShardPlace {
  int index = 0, count = 1;
  bool operator==(const ShardPlace&) const = default;
};

// Says where the gradient of one parameter is in the bucket of its layer.
struct BucketTensor {
  FloatRun run;
  bool alone = false;  // a table by word, which is cut by itself
};

// Parameters that follow one another in a bucket and are cut together.
struct ShardUnit {
  std::size_t first = 0;  // the number of its first parameter in the bucket
  std::vector<FloatRun> tensors;
  std::vector<FloatRun> shards;  // by ShardPlace::index
};

// Cuts a bucket: each table by word by itself, the parameters between tables together. So both uses
// of a tied table have the same shards.
std::vector<ShardUnit> CutBucket(std::span<const BucketTensor> tensors, int num_ranks);

// Returns the shard of a unit that a place has.
const FloatRun& ShardAt(const ShardUnit& unit, const ShardPlace& place);

// Returns the part of a tensor that lies in a shard. `first` counts from the tensor's beginning.
// count 0: no part does.
FloatRun PartIn(const FloatRun& shard, const FloatRun& tensor);

}  // namespace takt::layout
