// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::model {

// The share of one rank in layers that tensor parallelism splits
// (docs/adr/0010-mesh-of-more-axes.md).
struct TensorShare {
  int size = 1;   // the ranks that split every layer
  int index = 0;  // of this rank among them
  // Every split dimension is cut into so many leaves, whatever the number of ranks: a power of two
  // and a multiple of `size`. With 1, layers are not split.
  int leaves = 1;

  constexpr bool splits() const { return leaves > 1; }
  constexpr int leaves_here() const { return leaves / size; }
  constexpr int first_leaf() const { return index * leaves_here(); }
  bool operator==(const TensorShare&) const = default;
};

}  // namespace takt::model
