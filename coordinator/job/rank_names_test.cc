// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/rank_names.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

std::string NamesOf(int count) {
  RankNames names;
  for (int rank = 0; rank < count; ++rank)
    names.Add({.rank = Rank(rank), .worker = absl::StrCat("w", rank)});
  EXPECT_EQ(names.empty(), count == 0);
  return names.ToString();
}

TEST(RankNames, AllOfAFewRanksAreNamed) {
  EXPECT_EQ(NamesOf(0), "");
  EXPECT_EQ(NamesOf(1), "rank 0 (w0)");
  EXPECT_EQ(NamesOf(4), "rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3)");
}

TEST(RankNames, OfManyRanksTheFirstAreNamedAndTheOthersCounted) {
  EXPECT_EQ(NamesOf(5), "rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3) and 1 other");
  EXPECT_EQ(NamesOf(4096), "rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3) and 4092 others");
}

}  // namespace
}  // namespace takt::job
