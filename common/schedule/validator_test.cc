// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/validator.h"

#include "common/base/status.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns what the validator says about a CSV; "": nothing.
std::string Verdict(std::string_view csv, Placement placement = Placement::kLoop,
                    ValidateOptions options = {}) {
  auto schedule = ParseCsv(csv, "t");
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  schedule->placement = placement;
  const absl::Status status = Validate(*schedule, options);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldErrorsOf(status).size(), 1u);
  }
  return std::string(status.message());
}

TEST(Validator, AcceptsJointAndSplitBackward) {
  EXPECT_EQ(Verdict("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), "");
  EXPECT_EQ(Verdict("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1B0,1F1,1I1,1W1\n"), "");
  EXPECT_EQ(Verdict("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", Placement::kV), "");
  EXPECT_EQ(Verdict("0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1\n", Placement::kBidirectional), "");
}

TEST(Validator, AcceptsAnOverlappedPair) {
  EXPECT_EQ(Verdict("0F0,0F1,0F2,0B0,0B1,0B2\n"
                    "1F0,1B0,1F1,(1F2;1B1)OVERLAP_F_B,1B2\n"),
            "");
}

TEST(Validator, CountsAPairAsOneCell) {
  EXPECT_THAT(Verdict("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
              HasSubstr("rank 0, cell 5: 0B2 is missing"));
  EXPECT_THAT(Verdict("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
              HasSubstr("rank   0       0F0        0F1  (0F2;0B0)        0B1        0B2 "
                        "[      0B2]\n"));
}

TEST(Validator, RefusesAPairOfOneMicrobatch) {
  EXPECT_THAT(Verdict("(0F0;0B0)OVERLAP_F_B\n"), HasSubstr("0F0 joins 0B0 of its own microbatch"));
}

TEST(Validator, RefusesToJoinAnythingButABackward) {
  auto schedule = ParseCsv("0F0,0F1,0B0,0B1\n", "t").value();
  const auto verdict = [&](int joins) {
    Schedule joined = schedule;
    joined.ranks[0][joins].joins_next = true;
    return std::string(Validate(joined).message());
  };
  EXPECT_THAT(verdict(0), HasSubstr("0F0 joins 0F1, which is no B"));
  EXPECT_EQ(verdict(1), "");
  EXPECT_THAT(verdict(2), HasSubstr("0B0 is no F, and only an F joins a B"));
  std::swap(schedule.ranks[0][1], schedule.ranks[0][3]);
  EXPECT_THAT(verdict(3), HasSubstr("0F1 joins a B, but ends its row"));
}

TEST(Validator, NamesAMissingActionAndMarksItsNeighbour) {
  const std::string verdict = Verdict("0F0,0B0\n1F0\n");
  EXPECT_THAT(verdict, HasSubstr("1B0 is missing"));
  EXPECT_THAT(verdict, HasSubstr("one F and one B"));
}

TEST(Validator, PrintsTheGridWithTheGuiltyCellMarked) {
  EXPECT_THAT(Verdict("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n"),
              HasSubstr("    cell   1    2    3    4    5    6    7    8 \n"
                        "rank   0 0F0  0B0  0F1  0B1 \n"
                        "rank   1 1F0  1B0 [1B1] 1F1 "));
}

TEST(Validator, NamesAMissingHalfOfASplitBackward) {
  EXPECT_THAT(Verdict("0F0,0I0\n1F0,1B0\n"), HasSubstr("0W0 is missing"));
  EXPECT_THAT(Verdict("0F0,0W0\n1F0,1B0\n"), HasSubstr("0I0 is missing"));
}

TEST(Validator, StaysLinearWhenOneStrayCellClaimsMillions) {
  EXPECT_THAT(Verdict("0F0,0B0,0F16000000\n"), HasSubstr("0F1 is missing"));
  EXPECT_THAT(Verdict("0F0,0B0,16000000F16000000\n"), HasSubstr("0F1 is missing"));
}

TEST(Validator, NamesADoubledAction) {
  const std::string verdict = Verdict("0F0,0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(verdict, HasSubstr("0F0 occurs twice: already at rank 0, cell 1"));
  EXPECT_THAT(verdict, HasSubstr("0F0 [0F0]"));
}

TEST(Validator, NamesABackwardThatIsBothJointAndSplit) {
  EXPECT_THAT(Verdict("0F0,0B0,0I0\n"), HasSubstr("0I0 occurs beside 0B0"));
  EXPECT_THAT(Verdict("0F0,0B0,0W0\n"), HasSubstr("0W0 occurs beside 0B0"));
}

TEST(Validator, NamesAnImpossibleOrder) {
  EXPECT_THAT(Verdict("0B0,0F0\n1F0,1B0\n"),
              HasSubstr("0B0 comes before 0F0 (rank 0, cell 2), which it needs"));
  EXPECT_THAT(Verdict("0F0,0W0,0I0\n1F0,1B0\n"), HasSubstr("0W0 comes before 0I0"));
}

TEST(Validator, NamesTheRightRankOfAStrayAction) {
  EXPECT_THAT(Verdict("0F0,0B0,1B0\n1F0\n"),
              HasSubstr("1B0 is on rank 0, but stage 1 lives on rank 1"));
  EXPECT_THAT(Verdict("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", Placement::kV),
              HasSubstr("2F0 is on rank 0, but stage 2 lives on rank 1 (placement v)"));
  EXPECT_THAT(Verdict("0F0,1F1,1B1\n1F0,0F1,1B0,0B1,0B0\n", Placement::kBidirectional),
              HasSubstr("0B0 is on rank 1, but stage 0 lives on rank 0"));
}

// Two ranks; microbatch 0 flows down, 1 up.
constexpr std::string_view kBothWays = "0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1\n";

TEST(Validator, AcceptsEachMicrobatchEitherWay) {
  EXPECT_EQ(Verdict(kBothWays, Placement::kBidirectional), "");
  EXPECT_EQ(Verdict("1F0,0F1,1B0,0B1\n0F0,1F1,1B1,0B0\n", Placement::kBidirectional), "");
}

TEST(Validator, NamesTheActionOfAMicrobatchThatTurnsRound) {
  EXPECT_THAT(
      Verdict("0F0,1F1,1B1,0B0,0B1\n1F0,0F1,1B0\n", Placement::kBidirectional),
      HasSubstr("rank 0, cell 5: 0B1 is on rank 0, but stage 0 lives on rank 1 for "
                "microbatch 1, which flows up (placement bidirectional); move it to row 2"));
  EXPECT_THAT(Verdict("0F0,1F0,1B0,0B0\n0F1,1F1,1B1,0B1\n", Placement::kBidirectional),
              HasSubstr("1F0 is on rank 0, but stage 1 lives on rank 1 for microbatch 0, which "
                        "flows down"));
}

TEST(Validator, WantsMicrobatchesInBothDirections) {
  EXPECT_THAT(Verdict("0F0,0B0\n1F0,1B0\n", Placement::kBidirectional),
              HasSubstr("rank 0, cell 1: 0F0 flows down like all other microbatches"));
  EXPECT_THAT(Verdict("1F0,1B0\n0F0,0B0\n", Placement::kBidirectional),
              HasSubstr("rank 1, cell 1: 0F0 flows up like all other microbatches"));
}

TEST(InferPlacement, TakesTheFirstThatEveryRowAgreesWith) {
  const auto inferred = [](std::string_view csv) {
    return InferPlacement(ParseCsv(csv, "t").value()).value();
  };
  EXPECT_EQ(inferred("0F0,0B0\n1F0,1B0\n"), Placement::kLoop);
  EXPECT_EQ(inferred("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"), Placement::kV);
  EXPECT_EQ(inferred(kBothWays), Placement::kBidirectional);
}

TEST(InferPlacement, SaysWhatContradictsEachPlacement) {
  const auto refusal = [](std::string_view csv) {
    const absl::Status status = InferPlacement(ParseCsv(csv, "t").value()).status();
    EXPECT_EQ(FieldErrorsOf(status).size(), 1u);
    return std::string(status.message());
  };
  const std::string turned = refusal("0F0,1F1\n1F0,3F1\n2F0\n3F0\n");
  EXPECT_THAT(turned, HasSubstr("as a loop (here 1F1 is on rank 0, not 1)"));
  EXPECT_THAT(turned, HasSubstr("as a v (here 4 stages are not 2 a rank)"));
  EXPECT_THAT(turned, HasSubstr("bidirectionally (here 1F1 is on rank 0, not 1 or 2)"));
  EXPECT_THAT(refusal("1F0\n0F0\n2F0\n"),
              HasSubstr("3 stages are not 1 on each of an even number of ranks"));
}

TEST(Validator, SpellsOutAWaitingCycle) {
  const std::string verdict = Verdict("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_THAT(verdict, HasSubstr("can never start"));
  EXPECT_THAT(verdict,
              HasSubstr("0B0 (rank 0, cell 2) waits for 1B0, which is behind 1F1 on rank 1"));
  EXPECT_THAT(verdict,
              HasSubstr("1F1 (rank 1, cell 2) waits for 0F1, which is behind 0B0 on rank 0"));
}

TEST(Validator, KnowsThatAPairWaitsForTheInputsOfBoth) {
  // One after the other 1F1 could start, and 0B0 follow. As one each waits for the other.
  EXPECT_EQ(Verdict("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"), "");
  EXPECT_EQ(Verdict("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"), "");
  EXPECT_EQ(Verdict("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), "");
  const std::string verdict =
      Verdict("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
  EXPECT_THAT(verdict, HasSubstr("can never start"));
  EXPECT_THAT(verdict, HasSubstr("(0F1;0B0) (rank 0, cell 2) waits for 1B0; "
                                 "(1F1;1B0) (rank 1, cell 2) waits for 0F1"));
}

TEST(Validator, MarksTheActionThatExceedsTheLimit) {
  const std::string csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  EXPECT_EQ(Verdict(csv, Placement::kLoop, {.max_in_flight = 2}), "");
  EXPECT_THAT(Verdict(csv, Placement::kLoop, {.max_in_flight = 1}),
              HasSubstr("0F1 would be number 2 in flight on rank 0, the limit is 1"));
}

TEST(Validator, RefusesStagesThatDoNotFitThePlacement) {
  EXPECT_THAT(Verdict("0F0,0B0,2F0,2B0\n1F0,1B0\n"), HasSubstr("multiple of ranks (2)"));
  EXPECT_THAT(Verdict("0F0,0B0\n1F0,1B0\n", Placement::kV), HasSubstr("twice the ranks (2)"));
  EXPECT_THAT(Verdict("0F0,0B0\n", Placement::kBidirectional), HasSubstr("an even number"));
}

TEST(Validator, RefusesCountsAndActionsOutOfRange) {
  Schedule schedule{.num_stages = 1, .num_microbatches = 1};
  EXPECT_THAT(std::string(Validate(schedule).message()), HasSubstr("ranks is 0"));
  schedule.ranks.push_back({{StageId(0), ActionKind::kForward, MicrobatchId(1)}});
  EXPECT_THAT(std::string(Validate(schedule).message()),
              HasSubstr("0F1 is out of range: there are 1 stage and 1 microbatch, counted"));
  schedule.num_microbatches = 0;
  EXPECT_THAT(std::string(Validate(schedule).message()), HasSubstr("microbatches is 0"));
}

TEST(Warnings, TellWeightGradientsOutOfOrderOncePerStage) {
  const auto descending = ParseCsv("0F0,0F1,0F2,0B2,0B1,0B0\n", "t");
  const auto warnings = Warnings(*descending);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("stage 0"));
  EXPECT_THAT(warnings[0], HasSubstr("0B1 after microbatch 2"));
  EXPECT_THAT(Warnings(*ParseCsv("0F0,0F1,0I1,0I0,0W0,0W1\n", "t")), IsEmpty());
}

TEST(Warnings, LookAtEachCopyOfAStageAlone) {
  auto schedule = ParseCsv("0F1,1F0,1B0,0B1\n1F1,0F0,1B1,0B0\n", "t").value();
  schedule.placement = Placement::kBidirectional;
  EXPECT_TRUE(Validate(schedule).ok());
  EXPECT_THAT(Warnings(schedule), IsEmpty());
}

TEST(PeakInFlight, CountsTheForwardOfAPairBeforeItsBackwardReleases) {
  EXPECT_THAT(PeakInFlight(*ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "t")), ElementsAre(2));
}

TEST(PeakInFlight, CountsFromForwardToWeightGrad) {
  EXPECT_THAT(
      PeakInFlight(*ParseCsv("0F0,0F1,0I0,0F2,0W0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "t")),
      ElementsAre(3, 1));
}

}  // namespace
}  // namespace takt::schedule
