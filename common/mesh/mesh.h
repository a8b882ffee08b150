// SPDX-License-Identifier: Apache-2.0
// The grid of ranks with named axes (pp, dp), slowest first: rank = pp_rank * dp_size + dp_rank.
// (tp is 1.)
#pragma once

#include <vector>

#include "common/base/id.h"
#include "common/model/recompute.h"

namespace takt::mesh {

struct Mesh {
  int pp_size = 1;
  int dp_size = 1;

  int size() const { return pp_size * dp_size; }
  Rank RankOf(PpRank pp, DpRank dp) const { return Rank(pp.value() * dp_size + dp.value()); }
  PpRank PpRankOf(Rank rank) const { return PpRank(rank.value() / dp_size); }
  DpRank DpRankOf(Rank rank) const { return DpRank(rank.value() % dp_size); }
};

// Consecutive layers of the model's list that run as one unit: [first_layer, last_layer).
struct Stage {
  StageId id;
  PpRank pp_rank;
  LayerId first_layer, last_layer;
  model::Recompute recompute = model::Recompute::kNone;
};

// All stages in forward order.
using Partition = std::vector<Stage>;

}  // namespace takt::mesh
