// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/text.h"

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::HasSubstr;

TEST(Action, PrintsAndParsesBack) {
  for (const std::string_view text : {"0F0", "12I345", "3W7", "1B10"}) {
    const auto action = Action::Parse(text);
    ASSERT_TRUE(action.ok()) << action.status();
    EXPECT_EQ(action->ToString(), text);
  }
}

TEST(Action, RefusesWhatIsNotOne) {
  for (const std::string_view text :
       {"", "F0", "0F", "0X0", "0f0", "-1F0", "0F-1", "+1F0", "01F0", "0F00", " 0F0", "0F0 ",
        "0F0;1B0", "(0F1;7B2)OVERLAP_F_B", "99999999999F0", "16777216F0", "0F0F0", "0"}) {
    EXPECT_EQ(Action::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Action, SaysThatOnlyComputeActionsAreTaken) {
  for (const std::string_view text :
       {"0SEND_F0", "1RECV_B3", "0UNSHARD", "2RESHARD", "0REDUCE_GRAD"}) {
    EXPECT_THAT(std::string(Action::Parse(text).status().message()),
                HasSubstr("compute actions only"))
        << text;
  }
}

TEST(Action, ShowsOnlyTheBeginningOfGarbage) {
  const absl::Status status = Action::Parse(std::string(1 << 20, '\x01')).status();
  EXPECT_LT(status.message().size(), 500u);
}

TEST(Cell, HoldsAnActionOrAPairWithItsForwardFirst) {
  EXPECT_EQ(ParseCell("3W7").value(), std::vector<Action>{Action::Parse("3W7").value()});
  Action forward = Action::Parse("0F3").value();
  forward.joins_next = true;
  const std::vector<Action> pair = {forward, Action::Parse("7B12").value()};
  EXPECT_EQ(ParseCell("(0F3;7B12)OVERLAP_F_B").value(), pair);
  EXPECT_EQ(ParseCell("(7B12;0F3)OVERLAP_F_B").value(), pair);
}

TEST(Cell, RefusesPairsOfAnythingButOneForwardAndOneBackward) {
  for (const std::string_view text :
       {"(", "()", ";", "(;)OVERLAP_F_B", "(0F0)OVERLAP_F_B", "(0F0;1B1)", "(0F0;1B1)OVERLAP",
        "(0F0;1B1)OVERLAP_F_B ", "(0F0;1F1)OVERLAP_F_B", "(0B0;1B1)OVERLAP_F_B",
        "(0F0;1I1)OVERLAP_F_B", "(0F0;1W1)OVERLAP_F_B", "(0F0;1B1;2B2)OVERLAP_F_B",
        "((0F0;1B1)OVERLAP_F_B;1B1)OVERLAP_F_B", "( 0F0;1B1)OVERLAP_F_B", ");)OVERLAP_F_B",
        "(;OVERLAP_F_B", "(0F0;16777216B1)OVERLAP_F_B"}) {
    const absl::Status status = ParseCell(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseCell("(0F0;1F1)OVERLAP_F_B").status().message()),
              HasSubstr("an overlapped pair is one F and one B"));
  EXPECT_LT(ParseCell("(" + std::string(1 << 20, '\x01')).status().message().size(), 500u);
}

TEST(Csv, WritesPairsAsItReadsThem) {
  const std::string csv = "0F0,(1F1;2B3)OVERLAP_F_B,(1F2;2B4)OVERLAP_F_B,0W0\n1F0\n";
  const auto schedule = ParseCsv(csv, "x.csv");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->ranks[0].size(), 6u);
  EXPECT_EQ(schedule->num_stages, 3);
  EXPECT_EQ(schedule->num_microbatches, 5);
  EXPECT_EQ(FormatCsv(*schedule), csv);
}

TEST(Csv, AcceptsBlankCellsAndBothLineEnds) {
  const auto schedule = ParseCsv("0F0,, 0F1 ,0B0,0B1,\r\n1F0,1B0,,1F1,1B1\n\n", "x.csv");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->name, "x.csv");
  EXPECT_EQ(schedule->num_ranks(), 2);
  EXPECT_EQ(schedule->num_stages, 2);
  EXPECT_EQ(schedule->num_microbatches, 2);
  EXPECT_EQ(FormatCsv(*schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Csv, NamesRowAndCellOfAnError) {
  const absl::Status status = ParseCsv("0F0,0B0\n1F0,,1X0\n", "x.csv").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto errors = FieldErrorsOf(status);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].where, "x.csv:2:3");
  EXPECT_EQ(errors[0].value, "1X0");
}

TEST(Csv, KeepsAnEmptyRowBetweenOthersAsARank) {
  const auto schedule = ParseCsv("0F0,0B0\n\n1F0,1B0\n", "x.csv");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->num_ranks(), 3);
}

TEST(Csv, RefusesAnEmptyFile) {
  for (const std::string_view text : {"", "\n", " , ,\r\n"}) {
    EXPECT_THAT(std::string(ParseCsv(text, "x.csv").status().message()),
                HasSubstr("at least one action"));
  }
}

}  // namespace
}  // namespace takt::schedule
