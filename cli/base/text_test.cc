// SPDX-License-Identifier: Apache-2.0
#include "cli/base/text.h"

#include <cmath>

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(Text, SecondsTakeTheUnitThatFits) {
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.56), "4.56 s");
  EXPECT_EQ(FormatSeconds(245), "4m05s");
  EXPECT_EQ(FormatSeconds(7380), "2h03m");
  EXPECT_EQ(FormatSeconds(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatSeconds(std::nan("")), "?");
}

TEST(Text, CountsAndBytesKeepThreeDigits) {
  EXPECT_EQ(FormatCount(950), "950");
  EXPECT_EQ(FormatCount(12345), "12.3k");
  EXPECT_EQ(FormatCount(999999), "1M");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatPercent(3.0 / 11), "27.3%");
}

TEST(Text, TableAlignsColumnsAndEndsLinesWithoutBlanks) {
  Table table({"A", "LONG", "C"});
  table.Add({"xyz", "1", ""});
  EXPECT_EQ(table.ToString(), "A    LONG  C\nxyz  1\n");
}

TEST(Harmless, LeavesTextAndTakesWhatMovesTheCursor) {
  EXPECT_EQ(Harmless("a\tb\n\xc3\xa0 \xe2\x80\x94"), "a\tb\n\xc3\xa0 \xe2\x80\x94");
  EXPECT_EQ(Harmless("\x1b[2Jx\r\x07\x7f"), "?[2Jx???");
  EXPECT_EQ(Harmless("\xc2\x9b"
                     "31m\xc2\xa0"
                     "end\xc2"),
            "?31m\xc2\xa0"
            "end\xc2");
}

TEST(OneLine, HasNoLineMore) { EXPECT_EQ(OneLine("a\nb\tc\r"), "a b c?"); }

TEST(Table, HoldsItsCellsToALine) {
  Table table({"NAME", "REASON"});
  table.Add({"a", "lost\nits \x1b[2Jworker"});
  EXPECT_EQ(table.ToString(), "NAME  REASON\na     lost its ?[2Jworker\n");
}

}  // namespace
}  // namespace takt::cli
