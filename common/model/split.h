// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/model/tensor_share.h"

namespace takt::model {

// Says which pieces of a parameter one rank has, where tensor parallelism splits layers. The rank
// stores its pieces as one matrix: the rows of its first piece, then those of the next one. So each
// piece is contiguous, whichever dimension is cut. The default is a parameter that is not cut.
struct Split {
  int dimension = 0;  // of the whole, which is cut
  // The dimension consists of so many equal sections, and a piece has its run of each. GPT-2's
  // c_attn has 3: q, k and v.
  int sections = 1;
  int pieces = 1;            // of the whole
  int first = 0, count = 1;  // the rank's
  // So many neighbouring ranks have the same pieces as this rank, which is number `holder` of them.
  int holders = 1, holder = 0;
  // Whether each leaf that uses a piece has a part of its gradient, which are added along a tree
  // over the leaves. If not, each holder has the whole gradient.
  bool summed = false;
  // So many leaves of this rank use each piece. The rank has a gradient of its pieces for each of
  // them, one behind the other. The first one gets the sum.
  int gradients = 1;

  bool operator==(const Split&) const = default;
};

// Returns the split of a parameter of which all leaves together use so many pieces. Each piece is
// used by equally many neighbouring leaves.
// pieces: a power of two, at most share.leaves.
constexpr Split SplitOf(int pieces, const TensorShare& share) {
  const int users = share.leaves / pieces;  // the leaves that use one piece
  const int here = share.leaves_here();
  Split split{.pieces = pieces};
  split.first = share.first_leaf() / users;
  split.count = std::max(1, here / users);
  split.holders = std::max(1, users / here);
  split.holder = share.index % split.holders;
  split.summed = users > 1;
  split.gradients = std::min(users, here);
  return split;
}

// Returns the split of a parameter that every rank has, with the whole of its gradient.
constexpr Split CopyOf(const TensorShare& share) {
  return {.holders = share.size, .holder = share.index};
}

}  // namespace takt::model
