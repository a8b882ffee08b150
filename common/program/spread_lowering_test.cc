// SPDX-License-Identifier: Apache-2.0
// Tests the programs of schedules that spread the vocabulary over all ranks.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/program/forward_only.h"
#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum SlotKind;

schedule::Schedule Spread(std::string_view family, int ranks, int microbatches) {
  const auto schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  auto spread = schedule::SpreadVocabulary(*schedule, {}, /*depth=*/2);
  EXPECT_TRUE(spread.ok()) << spread.status();
  return *std::move(spread);
}

std::vector<Program> Lowered(std::string_view family, int ranks, int microbatches,
                             LowerOptions options = {}) {
  if (!options.vocabulary.has_value()) options.vocabulary = VocabularyShape{};
  auto programs = Lower(Spread(family, ranks, microbatches), options);
  EXPECT_TRUE(programs.ok()) << programs.status();
  return *std::move(programs);
}

const Instruction& Find(const Program& program, std::string_view text) {
  for (const Instruction& instruction : program.body) {
    if (ToString(instruction, program) == text) return instruction;
  }
  ADD_FAILURE() << "no " << std::string(text);
  return program.body[0];
}

std::vector<SlotKind> Kinds(const Program& program, const std::vector<SlotId>& slots) {
  std::vector<SlotKind> kinds;
  for (const SlotId slot : slots) kinds.push_back(program.slots[slot.value()].kind);
  return kinds;
}

std::vector<std::string> Texts(const Program& program, LaneKind kind) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.body) {
    if (program.lanes[instruction.lane.value()].kind != kind) continue;
    texts.push_back(ToString(instruction, program));
  }
  return texts;
}

TEST(SpreadLowering, TouchesTheSlotsOfTheTable) {
  const std::vector<Program> programs = Lowered("1f1b", 2, 2);
  const auto expect = [&](int rank, std::string_view text, std::vector<SlotKind> reads,
                          std::vector<SlotKind> writes) {
    const Program& program = programs[rank];
    const Instruction& found = Find(program, text);
    EXPECT_EQ(Kinds(program, found.reads), reads) << std::string(text);
    EXPECT_EQ(Kinds(program, found.writes), writes) << std::string(text);
  };
  expect(0, "ROWS(1)", {kTokens, kWeights}, {kInput});
  expect(1, "ROWS(1)", {kTokens, kWeights}, {});
  expect(0, "0F1", {kInput, kWeights}, {kOutput, kStash});
  expect(1, "1F1", {kInput, kTokens, kWeights}, {kStash, kHeadInput});
  expect(0, "SHARE(1)", {}, {kHeadInput});
  expect(1, "SHARE(1)", {kHeadInput}, {});
  expect(0, "2S1", {kHeadInput, kTokens, kWeights}, {kVocabularyStash});
  expect(0, "GATHER(1)", {kVocabularyStash}, {kVocabularyStash});
  expect(0, "2T1", {kHeadInput, kTokens, kVocabularyStash, kWeights, kGradient},
         {kVocabularyStash, kPartialGrad, kGradient});
  expect(1, "2T1", {kHeadInput, kTokens, kVocabularyStash, kWeights, kGradient, kScalars},
         {kVocabularyStash, kPartialGrad, kGradient, kScalars});
  expect(0, "RETURN(1)", {kPartialGrad}, {});
  expect(1, "RETURN(1)", {kPartialGrad}, {kHeadGrad});
  expect(1, "1B1", {kInput, kTokens, kStash, kHeadGrad, kWeights, kGradient},
         {kInputGrad, kStash, kGradient});
  expect(0, "0B1", {kInput, kStash, kOutputGrad, kWeights, kGradient},
         {kInputGrad, kStash, kGradient});
  expect(0, "ROWS_GRAD(1)", {kTokens, kInputGrad}, {kGradient});
  expect(1, "ROWS_GRAD(1)", {kTokens}, {kGradient});
  expect(0, "OPT", {kScalars, kGradient, kGradient, kGradient}, {kWeights, kWeights, kWeights});
  for (const Program& program : programs) Find(program, "LOAD");
}

TEST(SpreadLowering, ListsTheMeetingsOfAllRanksInOneOrder) {
  for (const char* family : {"1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "gpipe"}) {
    const std::vector<Program> programs = Lowered(family, 4, 8);
    const std::vector<std::string> first = Texts(programs[0], LaneKind::kVocabulary);
    EXPECT_EQ(first.size(), 5 * 8U) << family;
    for (const Program& program : programs) {
      EXPECT_EQ(Texts(program, LaneKind::kVocabulary), first) << family;
    }
  }
}

TEST(SpreadLowering, GivesMeetingsAndSlotsTheirSizes) {
  const std::vector<Program> programs =
      Lowered("1f1b", 2, 2,
              {.vocabulary = VocabularyShape{.head_input_bytes = 100,
                                             .stash_bytes = {20, 21},
                                             .partial_grad_bytes = {300, 301},
                                             .rows_bytes = {40, 41},
                                             .parts_bytes = {5, 6}}});
  EXPECT_EQ(Find(programs[1], "SHARE(0)").bytes, 100);
  EXPECT_EQ(Find(programs[0], "SHARE(0)").bytes, 0);
  EXPECT_EQ(Find(programs[1], "GATHER(0)").bytes, 6);
  EXPECT_EQ(Find(programs[0], "RETURN(0)").bytes, 300);
  EXPECT_EQ(Find(programs[1], "ROWS(0)").bytes, 41);
  EXPECT_EQ(Find(programs[0], "ROWS_GRAD(0)").bytes, 40);
  const auto size_of = [&](SlotKind kind) {
    const Program& program = programs[1];
    for (const Slot& slot : program.slots) {
      if (slot.kind == kind) return slot.bytes;
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(size_of(kHeadInput), 100);
  EXPECT_EQ(size_of(kVocabularyStash), 21);
  EXPECT_EQ(size_of(kPartialGrad), 301);
  EXPECT_EQ(size_of(kHeadGrad), 100);
}

TEST(SpreadLowering, SumsRowsOnEveryRank) {
  const std::vector<Program> programs =
      Lowered("1f1b", 2, 2, {.reduce_gradients = true, .tied_embeddings = true});
  for (const Program& program : programs) {
    const std::vector<std::string> sums = Texts(program, LaneKind::kReduce);
    EXPECT_THAT(sums, Contains("REDUCE_GRAD(rows 0)"));
    EXPECT_THAT(sums, Contains("REDUCE_GRAD(rows 1)"));
    const Instruction& tied = Find(program, "REDUCE_TIED");
    ASSERT_EQ(tied.reads.size(), 2U);
    for (int use = 0; use < 2; ++use) {
      const Slot& slot = program.slots[tied.reads[use].value()];
      EXPECT_EQ(slot.stage, StageId(program.num_stages));
      EXPECT_EQ(slot.index, use);
    }
    EXPECT_THAT(HeldStages(program), Not(Contains(StageId(program.num_stages))));
  }
}

TEST(SpreadLowering, IsStoredAsVersionSix) {
  for (const Program& program : Lowered("zb-v", 2, 4, {.merge_weight_grads = true})) {
    const v1::Program proto = ToProto(program);
    EXPECT_EQ(proto.version(), 6);
    const auto back = FromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(ToProto(*back).SerializeAsString(), proto.SerializeAsString());
  }
}

TEST(SpreadLowering, ValidatesWithALossOnTheRoot) {
  const std::vector<Program> programs = ForwardOnly(Lowered("1f1b", 2, 2));
  for (const Program& program : programs) {
    EXPECT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
    std::set<Op> ops;
    for (const Instruction& instruction : program.body) ops.insert(instruction.op);
    EXPECT_THAT(ops, Contains(Op::kGather));
    EXPECT_THAT(ops, Contains(Op::kVocabularyForward));
    EXPECT_THAT(ops, Not(Contains(Op::kVocabularyBackward)));
    EXPECT_THAT(ops, Not(Contains(Op::kReturn)));
    EXPECT_EQ(ops.contains(Op::kLoss), program.pp_rank == PpRank(1));
  }
  const Instruction& loss = Find(programs[1], "LOSS(1)");
  EXPECT_THAT(Kinds(programs[1], loss.reads), ElementsAre(kTokens, kVocabularyStash, kScalars));
}

TEST(SpreadLowering, WantsSizesExactlyIfTheScheduleSpreads) {
  EXPECT_THAT(Lower(Spread("1f1b", 2, 2), {}).status().message(), HasSubstr("has no sizes"));
  const auto plain = schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 2});
  EXPECT_THAT(Lower(*plain, {.vocabulary = VocabularyShape{}}).status().message(),
              HasSubstr("does not spread it"));
  EXPECT_THAT(Lower(Spread("1f1b", 2, 2), {.vocabulary = VocabularyShape{.rows_bytes = {1}}})
                  .status()
                  .message(),
              HasSubstr("one size for each of the 2 ranks"));
}

TEST(SpreadLowering, RefusesAThirdUseOfRows) {
  Program program = Lowered("1f1b", 2, 2)[0];
  for (Slot& slot : program.slots) {
    if (slot.kind == kGradient && slot.stage == StageId(2)) slot.index = 2;
  }
  EXPECT_THAT(CheckProgram(program).message(), HasSubstr("has a stage out of range"));
}

}  // namespace
}  // namespace takt::program
