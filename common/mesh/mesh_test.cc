// SPDX-License-Identifier: Apache-2.0
#include "common/mesh/mesh.h"

#include "gtest/gtest.h"

namespace takt::mesh {
namespace {

TEST(Mesh, NumbersRanksWithPipelineSlowest) {
  const Mesh mesh{.pp_size = 3, .dp_size = 2};
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.RankOf(PpRank(0), DpRank(1)), Rank(1));
  EXPECT_EQ(mesh.RankOf(PpRank(1), DpRank(0)), Rank(2));
}

TEST(Mesh, EveryRankMapsToItsAxesAndBack) {
  const Mesh mesh{.pp_size = 4, .dp_size = 3};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(mesh.RankOf(mesh.PpRankOf(Rank(rank)), mesh.DpRankOf(Rank(rank))), Rank(rank));
  }
}

}  // namespace
}  // namespace takt::mesh
