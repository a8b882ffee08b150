// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/seen_lines.h"

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(SeenLines, ALineIsNewOnce) {
  SeenLines seen;
  EXPECT_TRUE(seen.IsNew("a"));
  EXPECT_TRUE(seen.IsNew("b"));
  EXPECT_FALSE(seen.IsNew("a"));
}

// The log has dropped its oldest line before the second stream begins.
TEST(SeenLines, ANewLineIsNewAlthoughTheLogBeginsLater) {
  SeenLines seen;
  for (const char* line : {"1", "2", "3"}) EXPECT_TRUE(seen.IsNew(line));
  EXPECT_FALSE(seen.IsNew("2"));
  EXPECT_FALSE(seen.IsNew("3"));
  EXPECT_TRUE(seen.IsNew("4"));
}

TEST(SeenLines, RemembersTheLastOnes) {
  SeenLines seen(/*most=*/2);
  for (const char* line : {"1", "2", "3"}) EXPECT_TRUE(seen.IsNew(line));
  EXPECT_FALSE(seen.IsNew("2"));
  EXPECT_FALSE(seen.IsNew("3"));
  EXPECT_TRUE(seen.IsNew("1"));
}

}  // namespace
}  // namespace takt::cli
