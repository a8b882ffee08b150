// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/styled_line.h"

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(StyledLine, IsCutToTheScreenByCharactersNotBytes) {
  StyledLine line("ab", Style::kBold);
  line.Append("\u2588\u2588c");
  EXPECT_EQ(line.width(), 5);
  EXPECT_EQ(line.Text(80, false), "ab\u2588\u2588c");
  EXPECT_EQ(line.Text(3, false), "ab\u2588");
  EXPECT_EQ(line.Text(0, false), "");
  EXPECT_EQ(line.Text(-1, false), "");
}

TEST(StyledLine, EveryColourThatBeginsEnds) {
  StyledLine line("ab", Style::kBad);
  line.PadTo(4).Append("c");
  EXPECT_EQ(line.Text(80, true), "\x1b[31mab\x1b[0m  c");
  EXPECT_EQ(line.Text(1, true), "\x1b[31ma\x1b[0m");
  EXPECT_EQ(line.Text(4, false), "ab");
}

TEST(StyledLine, PrintableLeavesNothingThatATerminalActsOn) {
  EXPECT_EQ(Printable("plain ~"), "plain ~");
  EXPECT_EQ(Printable("\x1b[2J\n\x7f\xff"), "?[2J???");
  EXPECT_EQ(WidthOf(Printable("\u00e9")), 2);
}

TEST(StyledLine, BarsShowSharesAndNothingWhereThereIsNoRoom) {
  EXPECT_EQ(BarOf(0.5, 6, false), "[##--]");
  EXPECT_EQ(BarOf(0.5, 6, true), "[\u2588\u2588\u2591\u2591]");
  EXPECT_EQ(BarOf(7, 5, false), "[###]");
  EXPECT_EQ(BarOf(-1, 5, false), "[---]");
  EXPECT_EQ(BarOf(0.0 / 0.0, 5, false), "[---]");
  EXPECT_EQ(BarOf(0.5, 4, false), "");
}

}  // namespace
}  // namespace takt::cli
