// SPDX-License-Identifier: Apache-2.0
#include "common/mesh/mesh.h"

#include <cstdint>
#include <vector>

#include "common/mesh/mesh_serde.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::mesh {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

TEST(Mesh, NumbersRanksWithPipelineSlowestAndTensorFastest) {
  const Mesh two{.pp_size = 3, .dp_size = 2};
  EXPECT_EQ(two.size(), 6);
  EXPECT_EQ(two.RankOf({PpRank(0), DpRank(1)}), Rank(1));
  EXPECT_EQ(two.RankOf({PpRank(1), DpRank(0)}), Rank(2));
  const Mesh four{.pp_size = 2, .dp_size = 3, .cp_size = 5, .tp_size = 4};
  EXPECT_EQ(four.size(), 120);
  EXPECT_EQ(four.RankOf({.tp = TpRank(1)}), Rank(1));
  EXPECT_EQ(four.RankOf({.cp = CpRank(1)}), Rank(4));
  EXPECT_EQ(four.RankOf({.dp = DpRank(1)}), Rank(20));
  EXPECT_EQ(four.RankOf({.pp = PpRank(1)}), Rank(60));
}

TEST(Mesh, EveryRankMapsToItsAxesAndBack) {
  for (const Mesh& mesh : {Mesh{.pp_size = 4, .dp_size = 3},
                           Mesh{.pp_size = 2, .dp_size = 3, .cp_size = 2, .tp_size = 4},
                           Mesh{.cp_size = 3, .tp_size = 2}}) {
    for (Rank rank(0); rank.value() < mesh.size(); ++rank) {
      const Coordinates at = mesh.At(rank);
      EXPECT_LT(at.pp.value(), mesh.pp_size);
      EXPECT_LT(at.dp.value(), mesh.dp_size);
      EXPECT_LT(at.cp.value(), mesh.cp_size);
      EXPECT_LT(at.tp.value(), mesh.tp_size);
      EXPECT_EQ(mesh.RankOf(at), rank);
      EXPECT_EQ(mesh.RankOf(mesh.PpRankOf(rank), mesh.ChainOf(rank)), rank);
    }
  }
}

TEST(Mesh, AChainDiffersOnThePipelineAlone) {
  const Mesh mesh{.pp_size = 3, .dp_size = 2, .tp_size = 2};
  EXPECT_EQ(mesh.num_chains(), 4);
  EXPECT_EQ(mesh.PeerOf(Rank(6), PpRank(0)), Rank(2));
  EXPECT_EQ(mesh.PeerOf(Rank(6), PpRank(2)), Rank(10));
  // With two axes the chains are the replicas.
  const Mesh two{.pp_size = 3, .dp_size = 4};
  for (Rank rank(0); rank.value() < two.size(); ++rank)
    EXPECT_EQ(two.ChainOf(rank), two.DpRankOf(rank).value());
}

TEST(Mesh, EveryGroupHasItsRanksInAscendingOrder) {
  const Mesh mesh{.pp_size = 2, .dp_size = 2, .cp_size = 2, .tp_size = 2};
  const Rank member(5);  // dp 1, tp 1
  EXPECT_THAT(RanksOf(mesh, Group::kPipeline, member), ElementsAre(Rank(5), Rank(13)));
  EXPECT_THAT(RanksOf(mesh, Group::kVocabulary, member), ElementsAre(Rank(5), Rank(13)));
  EXPECT_THAT(RanksOf(mesh, Group::kData, member), ElementsAre(Rank(1), Rank(5)));
  EXPECT_THAT(RanksOf(mesh, Group::kContext, member), ElementsAre(Rank(5), Rank(7)));
  EXPECT_THAT(RanksOf(mesh, Group::kTensor, member), ElementsAre(Rank(4), Rank(5)));
  EXPECT_THAT(RanksOf(mesh, Group::kReplicas, member),
              ElementsAre(Rank(1), Rank(3), Rank(5), Rank(7)));
}

TEST(Mesh, NeighbouringReplicasShareExperts) {
  const Mesh mesh{.pp_size = 2, .dp_size = 4};
  EXPECT_THAT(ExpertRanksOf(mesh, Rank(5), 2), ElementsAre(Rank(4), Rank(5)));
  EXPECT_THAT(ExpertRanksOf(mesh, Rank(6), 2), ElementsAre(Rank(6), Rank(7)));
  EXPECT_THAT(ExpertRanksOf(mesh, Rank(6), 4), ElementsAre(Rank(4), Rank(5), Rank(6), Rank(7)));
  EXPECT_THAT(ExpertRanksOf(mesh, Rank(6), 1), ElementsAre(Rank(6)));
}

TEST(Mesh, AGroupIsTheSameForAllItsRanks) {
  const Mesh mesh{.pp_size = 2, .dp_size = 3, .cp_size = 2, .tp_size = 2};
  for (const Group group : {Group::kPipeline, Group::kVocabulary, Group::kData, Group::kContext,
                            Group::kTensor, Group::kReplicas}) {
    for (Rank rank(0); rank.value() < mesh.size(); ++rank) {
      const std::vector<Rank> ranks = RanksOf(mesh, group, rank);
      EXPECT_THAT(ranks, Contains(rank)) << NameOf(group);
      EXPECT_EQ(RanksOf(mesh, group, ranks.front()), ranks) << NameOf(group);
    }
  }
}

TEST(Mesh, IsPossibleWithFewRanksOnEveryAxis) {
  EXPECT_TRUE(Mesh().IsPossible());
  EXPECT_TRUE((Mesh{.pp_size = 1024, .dp_size = 1024}.IsPossible()));
  EXPECT_FALSE((Mesh{.pp_size = 1024, .dp_size = 1024, .tp_size = 2}.IsPossible()));
  EXPECT_FALSE((Mesh{.pp_size = 1 << 30, .dp_size = 1 << 30, .cp_size = 1 << 30}.IsPossible()));
  EXPECT_FALSE((Mesh{.dp_size = 0}.IsPossible()));
  EXPECT_FALSE((Mesh{.tp_size = -1}.IsPossible()));
}

TEST(Mesh, NamesOnlyTheAxesThatItHas) {
  const Mesh two{.pp_size = 4, .dp_size = 2};
  EXPECT_TRUE(two.HasTwoAxes());
  EXPECT_EQ(ToString(two), "4 x 2");
  EXPECT_EQ(PlaceName(two, Rank(3)), "pp 1, dp 1");
  const Mesh three{.pp_size = 2, .dp_size = 1, .tp_size = 4};
  EXPECT_FALSE(three.HasTwoAxes());
  EXPECT_EQ(ToString(three), "2 x 1 x tensor 4");
  EXPECT_EQ(PlaceName(three, Rank(7)), "pp 1, dp 0, tp 3");
  const Mesh four{.pp_size = 1, .dp_size = 1, .cp_size = 2, .tp_size = 2};
  EXPECT_EQ(ToString(four), "1 x 1 x context 2 x tensor 2");
  EXPECT_EQ(PlaceName(four, Rank(2)), "pp 0, dp 0, cp 1, tp 0");
}

// Stands for a message. Its fields are 0 where they are left out, as those of proto3.
class Sizes {
 public:
  int pp_size() const { return pp_; }
  int dp_size() const { return dp_; }
  int cp_size() const { return cp_; }
  int tp_size() const { return tp_; }
  void set_pp_size(int size) { pp_ = size; }
  void set_dp_size(int size) { dp_ = size; }
  void set_cp_size(int size) { cp_ = size; }
  void set_tp_size(int size) { tp_ = size; }

 private:
  int pp_ = 0, dp_ = 0, cp_ = 0, tp_ = 0;
};

TEST(MeshSerde, KeepsEverySizeAndLeavesAxesOfOneRankOut) {
  Sizes sizes;
  SetMesh({.pp_size = 4, .dp_size = 2}, sizes);
  EXPECT_EQ(sizes.cp_size(), 0);
  EXPECT_EQ(sizes.tp_size(), 0);
  EXPECT_EQ(ToString(MeshOf(sizes)), "4 x 2");
  SetMesh({.pp_size = 1, .dp_size = 2, .cp_size = 3, .tp_size = 4}, sizes);
  EXPECT_EQ(ToString(MeshOf(sizes)), "1 x 2 x context 3 x tensor 4");
  EXPECT_FALSE(MeshOf(Sizes()).IsPossible());
}

TEST(VocabularySplit, GivesEachRankItsWordsAndTheLastOneTheRest) {
  constexpr std::int64_t kVocab = 2 * model::kVocabularyBlock + 100;
  const VocabularyEnds ends = {1, 1, 3};
  EXPECT_EQ(WordsOf(ends, PpRank(0), kVocab).words, model::kVocabularyBlock);
  EXPECT_EQ(BlocksOf(ends, PpRank(1)).first, BlocksOf(ends, PpRank(1)).last);
  EXPECT_EQ(WordsOf(ends, PpRank(1), kVocab).words, 0);
  EXPECT_EQ(WordsOf(ends, PpRank(2), kVocab).first, model::kVocabularyBlock);
  EXPECT_EQ(WordsOf(ends, PpRank(2), kVocab).words, model::kVocabularyBlock + 100);
}

TEST(VocabularySplit, KnowsASplitOfAllBlocksOverAllRanks) {
  constexpr std::int64_t kVocab = 2 * model::kVocabularyBlock + 100;
  EXPECT_TRUE(IsSplitOf({1, 1, 3}, 3, kVocab));
  EXPECT_TRUE(IsSplitOf({0, 3}, 2, kVocab));
  EXPECT_FALSE(IsSplitOf({}, 0, kVocab));
  EXPECT_FALSE(IsSplitOf({1, 3}, 3, kVocab));
  EXPECT_FALSE(IsSplitOf({-1, 3}, 2, kVocab));
  EXPECT_FALSE(IsSplitOf({2, 1, 3}, 3, kVocab));
  EXPECT_FALSE(IsSplitOf({1, 2}, 2, kVocab));
}

}  // namespace
}  // namespace takt::mesh
