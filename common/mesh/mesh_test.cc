// SPDX-License-Identifier: Apache-2.0
#include "common/mesh/mesh.h"

#include <cstdint>

#include "common/mesh/vocabulary_split.h"
#include "common/model/vocabulary.h"
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
