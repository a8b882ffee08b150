// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generate.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/schedule/testing/dry_run.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The field of the only error; "": there is none.
std::string FieldOf(const absl::Status& status) {
  const auto errors = FieldErrorsOf(status);
  return errors.empty() ? "" : errors[0].field;
}

TEST(Generate, NaiveRunsOneMicrobatchAtATime) {
  const auto schedule = Generate("naive", {.num_ranks = 2, .num_microbatches = 2});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(FormatCsv(*schedule), "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Generate, ListsFamiliesWhenTheNameIsUnknown) {
  const absl::Status status = Generate("2f2b", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  for (const Family& family : Families()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(family.name)));
  }
}

// A family without a line in families.def is not compiled, so no other test can find it.
TEST(Families, EveryFileOfAFamilyIsListed) {
  const std::filesystem::path folder = TAKT_SOURCE_DIR "/common/schedule/generators";
  std::set<std::string> listed;
  for (const Family& family : Families()) {
    listed.insert(absl::StrReplaceAll(std::string(family.name), {{"-", "_"}}) + ".cc");
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    if (text.str().find("\nGenerator ") == std::string::npos) continue;
    EXPECT_TRUE(listed.contains(entry.path().filename()))
        << entry.path() << " defines a family: list it in families.def, under its name";
  }
}

TEST(Families, EachHasANoteAndTheTwoFormulas) {
  for (const Family& family : Families()) {
    for (const std::string_view text : {family.summary, family.reference, family.bubble,
                                        family.peak, family.idea, family.sizes}) {
      EXPECT_FALSE(text.empty()) << family.name;
    }
  }
}

TEST(Generate, RefusesSizesThatAreNotPositive) {
  EXPECT_EQ(FieldOf(Generate("1f1b", {.num_ranks = 0}).status()), "ranks");
  EXPECT_EQ(FieldOf(Generate("1f1b", {.num_microbatches = -1}).status()), "microbatches");
  EXPECT_EQ(FieldOf(Generate("1f1b", {.num_chunks = 0}).status()), "chunks");
  EXPECT_EQ(FieldOf(Generate("interleaved-1f1b", {.group = 0}).status()), "group");
}

TEST(Generate, RefusesAbsurdSizesBeforeSpendingMemory) {
  const int kHuge = 1'000'000'000;
  EXPECT_EQ(FieldOf(Generate("gpipe", {.num_microbatches = kHuge}).status()), "microbatches");
  EXPECT_EQ(FieldOf(Generate("gpipe", {.num_ranks = kHuge, .num_microbatches = kHuge}).status()),
            "microbatches");
  EXPECT_EQ(FieldOf(Generate("interleaved-1f1b",
                             {.num_ranks = kHuge, .num_microbatches = kHuge, .num_chunks = kHuge})
                        .status()),
            "microbatches");
}

TEST(Generate, RefusesChunksAndGroupsOfFamiliesWithoutThem) {
  EXPECT_EQ(FieldOf(Generate("1f1b", {.num_chunks = 2}).status()), "chunks");
  EXPECT_EQ(FieldOf(Generate("gpipe", {.group = 4}).status()), "group");
}

TEST(Interleaved, NeedsTwoChunksAndAsManyMicrobatchesAsRanks) {
  EXPECT_EQ(
      FieldOf(Generate("interleaved-1f1b", {.num_ranks = 4, .num_microbatches = 8, .num_chunks = 1})
                  .status()),
      "chunks");
  for (const std::string_view family : {"interleaved-1f1b", "interleaved-zb"}) {
    const absl::Status few = Generate(family, {.num_ranks = 4, .num_microbatches = 3}).status();
    EXPECT_EQ(FieldOf(few), "microbatches");
    EXPECT_THAT(std::string(few.message()), HasSubstr("at least as many as ranks (4)"));
    EXPECT_TRUE(Generate(family, {.num_ranks = 4, .num_microbatches = 4}).ok());
    EXPECT_TRUE(Generate(family, {.num_ranks = 1, .num_microbatches = 1}).ok());
  }
}

TEST(Gis, NeedsHalfAsManyMicrobatchesAsRanks) {
  EXPECT_TRUE(Generate("gis", {.num_ranks = 5, .num_microbatches = 3}).ok());
  const absl::Status few = Generate("gis", {.num_ranks = 5, .num_microbatches = 2}).status();
  EXPECT_EQ(FieldOf(few), "microbatches");
  EXPECT_THAT(std::string(few.message()), HasSubstr("at least as many as half the ranks (3)"));
}

TEST(Interleaved, TakesTheSmallestLegalGroup) {
  // 16 = 5 * 3 + 1 leaves a group that is too short for 3 ranks. 16 = 4 * 4 leaves none.
  const auto chosen = Generate("interleaved-1f1b", {.num_ranks = 3, .num_microbatches = 16});
  const auto four =
      Generate("interleaved-1f1b", {.num_ranks = 3, .num_microbatches = 16, .group = 4});
  ASSERT_TRUE(chosen.ok() && four.ok());
  EXPECT_EQ(FormatCsv(*chosen), FormatCsv(*four));
  for (const int group : {2, 3, 17}) {
    EXPECT_EQ(FieldOf(Generate("interleaved-1f1b",
                               {.num_ranks = 3, .num_microbatches = 16, .group = group})
                          .status()),
              "group")
        << group;
  }
}

TEST(VFamilies, HaveTwoChunks) {
  for (const std::string_view family : {"zb-v", "v-half", "v-min", "dualpipe-v"}) {
    EXPECT_TRUE(Generate(family, {.num_ranks = 1, .num_microbatches = 2, .num_chunks = 2}).ok());
    const absl::Status one = Generate(family, {.num_chunks = 1}).status();
    EXPECT_EQ(FieldOf(one), "chunks");
    EXPECT_THAT(std::string(one.message()), HasSubstr("has two chunks per rank"));
  }
}

TEST(VFamilies, RefuseAFillBeyondTheLargestSchedule) {
  for (const std::string_view family : {"zb-v", "v-half", "v-min"}) {
    EXPECT_EQ(FieldOf(Generate(family, {.num_ranks = 100'000, .num_microbatches = 1}).status()),
              "ranks");
  }
}

TEST(TwoDirections, NeedEvenSizesAndEnoughMicrobatches) {
  const auto field = [](std::string_view family, int ranks, int microbatches) {
    return FieldOf(
        Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches}).status());
  };
  EXPECT_EQ(field("dualpipe", 3, 8), "ranks");
  EXPECT_EQ(field("dualpipe", 1, 8), "ranks");
  EXPECT_EQ(field("dualpipe", 2, 5), "microbatches");
  EXPECT_EQ(field("dualpipe", 4, 6), "microbatches");
  EXPECT_EQ(field("dualpipe", 4, 8), "");
  EXPECT_EQ(field("dualpipe-v", 3, 5), "microbatches");
  EXPECT_EQ(field("dualpipe-v", 3, 6), "");
  EXPECT_EQ(field("chimera", 3, 6), "ranks");
  EXPECT_EQ(field("chimera", 4, 6), "microbatches");
  EXPECT_EQ(field("chimera", 4, 4), "");
}

TEST(Chimera, NumbersTheMicrobatchesThatGoDownFirst) {
  const auto schedule = Generate("chimera", {.num_ranks = 2, .num_microbatches = 2});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(FormatCsv(*schedule), "0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n");
}

TEST(AutomaticScheduler, StaysWithinTheLimitThatIsGiven) {
  for (const int memory : {1, 2, 3, 8, 100}) {
    const auto schedule =
        Generate("zb-1p", {.num_ranks = 4, .num_microbatches = 12, .memory = memory});
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_TRUE(Validate(*schedule, {.max_in_flight = memory}).ok());
  }
  EXPECT_EQ(FieldOf(Generate("zb-2p", {.num_ranks = 4, .memory = 0}).status()), "memory");
}

TEST(AutomaticScheduler, RefusesCostsThatAreNone) {
  EXPECT_EQ(FieldOf(Generate("zb-1p", {.num_ranks = 2, .costs = {.forward = {1, 2, 3}}}).status()),
            "cost.F");
  EXPECT_EQ(FieldOf(Generate("zb-1p", {.costs = {.weight_grad = {std::nan("")}}}).status()),
            "cost.W");
}

// A slow last stage makes every gradient late: rank 0 must not idle while it may run ahead.
TEST(AutomaticScheduler, LooksAtTheCostsOfEachStage) {
  const cost::Costs slow_last{
      .forward = {1, 1, 1, 2}, .input_grad = {1, 1, 1, 2}, .weight_grad = {1, 1, 1, 2}};
  const GenerateOptions sizes{.num_ranks = 4, .num_microbatches = 12, .costs = slow_last};
  const auto aware = Generate("zb-1p", sizes);
  const auto blind = Generate("zb-1p", {.num_ranks = 4, .num_microbatches = 12});
  ASSERT_TRUE(aware.ok() && blind.ok());
  EXPECT_NE(aware->ranks, blind->ranks);
  EXPECT_LE(DryRun(*aware, slow_last).makespan, DryRun(*blind, slow_last).makespan);
}

TEST(RankOfStage, FollowsThePlacement) {
  const auto ranks = [](Placement placement) {
    std::vector<int> all;
    for (int s = 0; s < 6; ++s) all.push_back(RankOfStage(placement, 3, StageId(s)).value());
    return all;
  };
  EXPECT_THAT(ranks(Placement::kLoop), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(ranks(Placement::kV), ElementsAre(0, 1, 2, 2, 1, 0));
}

}  // namespace
}  // namespace takt::schedule
