// SPDX-License-Identifier: Apache-2.0
#include "common/program/split_pairs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "common/program/lowering.h"
#include "common/program/part_lists.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::ElementsAreArray;

// Stages of two layers that gather before F and I, and scatter after.
std::vector<Program> ProgramsOf(const char* family, bool meet) {
  const auto schedule = schedule::Generate(family, {.num_ranks = 2, .num_microbatches = 8}).value();
  const std::vector<Part> pass = {{PartKind::kGather, PartGroup::kTensor, 8},
                                  Part{},
                                  {PartKind::kScatter, PartGroup::kTensor, 8}};
  const model::LayerParts layer{.forward = pass, .input_grad = pass};
  LowerOptions options;
  for (int s = 0; s < schedule.num_stages; ++s) {
    options.stages.push_back(
        {.first_layer = LayerId(2 * s), .last_layer = LayerId(2 * s + 2), .output_bytes = 4});
    if (meet) options.stages.back().layers = {layer, layer};
  }
  return Lower(schedule, options).value();
}

std::vector<SlotId> Joined(const std::vector<SlotId>& a, const std::vector<SlotId>& b) {
  std::vector<SlotId> joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

TEST(SplitPairs, PutsTheHalvesInThePlaceOfEachPair) {
  for (const char* const family : {"dualpipe", "dualpipe-v", "1f1b"}) {
    for (const Program& program : ProgramsOf(family, /*meet=*/false)) {
      SCOPED_TRACE(program.schedule);
      const SplitProgram split = SplitPairs(program);
      const auto pairs = std::ranges::count(program.body, Op::kOverlap, &Instruction::op);
      EXPECT_EQ(HasPairs(program), pairs > 0);
      ASSERT_EQ(std::ssize(split.program.body), std::ssize(program.body) + pairs);
      ASSERT_EQ(split.origins.size(), split.program.body.size());
      EXPECT_FALSE(HasPairs(split.program));
      EXPECT_TRUE(CheckProgram(split.program).ok()) << CheckProgram(split.program);
      for (std::size_t i = 0; i + 1 < split.origins.size(); ++i) {
        if (split.origins[i] != split.origins[i + 1]) continue;
        const Instruction& whole = program.body[split.origins[i]];
        const Instruction& forward = split.program.body[i];
        const Instruction& backward = split.program.body[i + 1];
        EXPECT_EQ(forward.op, Op::kForward);
        EXPECT_EQ(backward.op, Op::kBackward);
        EXPECT_EQ(forward.stage, whole.stage);
        EXPECT_EQ(backward.stage, whole.backward_stage);
        EXPECT_EQ(backward.microbatch, whole.backward_microbatch);
        EXPECT_THAT(Joined(forward.reads, backward.reads), ElementsAreArray(whole.reads));
        EXPECT_THAT(Joined(forward.writes, backward.writes), ElementsAreArray(whole.writes));
      }
    }
  }
}

TEST(SplitPairs, LetTheMessageOfTheForwardGoBeforeTheBackwardEnds) {
  const Program program = ProgramsOf("dualpipe-v", /*meet=*/false)[0];
  const SplitProgram split = SplitPairs(program);
  const WaitLists waits = Dependencies(split.program);
  std::vector<std::int32_t> positions;  // by instruction, on its lane
  std::vector<std::int32_t> lengths(program.lanes.size());
  for (const Instruction& instruction : split.program.body)
    positions.push_back(lengths[instruction.lane.value()]++);
  int sends = 0;
  for (std::size_t i = 0; i + 2 < split.origins.size(); ++i) {
    const Instruction& send = split.program.body[i + 2];
    if (split.origins[i] != split.origins[i + 1] || send.op != Op::kSend) continue;
    if (send.stage != split.program.body[i].stage) continue;  // the message of the B
    ASSERT_EQ(waits[i + 2].size(), 1u);
    EXPECT_EQ(waits[i + 2][0].position, positions[i]);
    ++sends;
  }
  EXPECT_GT(sends, 0);
}

TEST(PairsReadOneVersion, UnlessAHalfReadsOlderWeights) {
  Program program = ProgramsOf("dualpipe-v", /*meet=*/false)[0];
  EXPECT_TRUE(PairsReadOneVersion(program));
  const auto pair = std::ranges::find(program.body, Op::kOverlap, &Instruction::op);
  const auto weights = std::ranges::find_if(pair->reads, [&](SlotId slot) {
    return program.slots[slot.value()].kind == SlotKind::kWeights;
  });
  ASSERT_NE(weights, pair->reads.end());
  program.slots[weights->value()].version = 1;
  EXPECT_FALSE(PairsReadOneVersion(program));
}

TEST(SplitPairs, KeepTheOrderOfMeetings) {
  for (const Program& program : ProgramsOf("dualpipe-v", /*meet=*/true)) {
    EXPECT_TRUE(PairsMeet(program));
    EXPECT_EQ(SplitPairs(program, Pairs::kWithoutMeetings).program.body.size(),
              program.body.size());
    const SplitProgram split = SplitPairs(program);
    ASSERT_EQ(NumMeetings(split.program), NumMeetings(program));
    std::vector<PartKind> whole, halves;
    const auto add = [](const Program& from, std::vector<PartKind>& kinds) {
      for (const Instruction& instruction : from.body) {
        for (const Part& part : PartListOf(instruction, from))
          if (part.meets()) kinds.push_back(part.kind);
      }
    };
    add(program, whole);
    add(split.program, halves);
    EXPECT_EQ(halves, whole);
  }
  EXPECT_FALSE(PairsMeet(ProgramsOf("dualpipe-v", /*meet=*/false)[0]));
}

}  // namespace
}  // namespace takt::program
