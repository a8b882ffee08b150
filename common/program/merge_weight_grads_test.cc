// SPDX-License-Identifier: Apache-2.0
#include "common/program/merge_weight_grads.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/program/compute_part.h"
#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/program/slot_bytes.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Program> Lowered(std::string_view family, bool merge) {
  const auto schedule = schedule::Generate(family, {.num_ranks = 4, .num_microbatches = 8});
  LowerOptions options{.reduce_gradients = true, .merge_weight_grads = merge};
  for (int s = 0; s < schedule->num_stages; ++s) {
    options.stages.push_back({.first_layer = LayerId(s),
                              .last_layer = LayerId(s + 1),
                              .output_bytes = 10,
                              .stash_bytes = 1000,
                              .recomputed_bytes = s % 2 == 0 ? 100 : 0});
  }
  return Lower(*schedule, options).value();
}

// The compute instructions alone. A W of several microbatches is listed as so many.
std::vector<std::string> ComputeOf(const Program& program) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.body) {
    if (!IsCompute(instruction.op)) continue;
    if (instruction.op != Op::kWeightGrad) {
      texts.push_back(ToString(instruction, program));
      continue;
    }
    for (const ComputePart& part : MicrobatchParts(instruction, program))
      texts.push_back(ToString(part));
  }
  return texts;
}

std::vector<std::string> WeightGradsOf(const Program& program) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.body) {
    if (instruction.op == Op::kWeightGrad) texts.push_back(ToString(instruction, program));
  }
  return texts;
}

std::map<std::pair<SlotKind, StageId>, int> PoolsOf(const Program& program) {
  std::map<std::pair<SlotKind, StageId>, int> pools;
  for (const Slot& slot : program.slots) ++pools[{slot.kind, slot.stage}];
  return pools;
}

TEST(MergeWeightGrads, TakesThoseThatFollowEachOther) {
  const std::vector<Program> programs = Lowered("zb-h1", true);
  EXPECT_THAT(WeightGradsOf(programs[0]),
              ElementsAre("0W0", "0W1", "0W2", "0W3", "0W4", "0W5", "0W6", "0W7"));
  EXPECT_THAT(WeightGradsOf(programs[3]), ElementsAre("3W0", "3W1", "3W2", "3W3", "3W4-7"));
}

TEST(MergeWeightGrads, KeepsOrderSlotsAndBytesOfEverySchedule) {
  int merged = 0;
  for (const schedule::Family& family : schedule::Families()) {
    SCOPED_TRACE(std::string(family.name));
    if (family.updates != schedule::Updates::kFlush) continue;
    const std::vector<Program> exact = Lowered(family.name, false);
    const std::vector<Program> programs = Lowered(family.name, true);
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      EXPECT_EQ(ComputeOf(programs[rank]), ComputeOf(exact[rank]));
      EXPECT_EQ(PoolsOf(programs[rank]), PoolsOf(exact[rank]));
      EXPECT_EQ(CountSlotBytes(programs[rank]).total, CountSlotBytes(exact[rank]).total);
      const absl::Status checked = CheckProgram(programs[rank]);
      EXPECT_TRUE(checked.ok()) << checked;
      merged += MergesWeightGrads(programs[rank]) ? 1 : 0;
    }
  }
  EXPECT_GE(merged, 20);  // programs
}

// The pools are rings: the slots of neighbours follow each other, except where a ring begins anew.
TEST(MergeWeightGrads, GivesNeighbouringMicrobatchesNeighbouringSlots) {
  for (const char* family : {"zb-h1", "zb-h2", "zb-v"}) {
    for (const Program& program : Lowered(family, true)) {
      for (const Instruction& instruction : program.body) {
        if (instruction.num_microbatches < 2) continue;
        const std::vector<ComputePart> parts = MicrobatchParts(instruction, program);
        for (std::size_t i = 1; i < parts.size(); ++i) {
          for (std::size_t k = 0; k < parts[i].reads.size(); ++k) {
            const Slot& slot = program.slots[parts[i].reads[k].value()];
            const Slot& before = program.slots[parts[i - 1].reads[k].value()];
            EXPECT_EQ(slot.kind, before.kind);
            if (slot.kind == SlotKind::kTokens) continue;
            const int size = PoolsOf(program)[{slot.kind, slot.stage}];
            EXPECT_EQ(slot.index, (before.index + 1) % size)
                << family << " " << ToString(instruction, program);
          }
        }
      }
    }
  }
}

TEST(MergeWeightGrads, LeavesAProgramWithoutAnyAsItWas) {
  for (const char* family : {"1f1b", "interleaved-1f1b", "gpipe"}) {
    const std::vector<Program> exact = Lowered(family, false), programs = Lowered(family, true);
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      EXPECT_EQ(ToProto(programs[rank]).SerializeAsString(),
                ToProto(exact[rank]).SerializeAsString())
          << family;
    }
  }
}

TEST(MergeWeightGrads, IsStoredInAVersionOfItsOwn) {
  const Program program = Lowered("zb-h1", true)[2];
  const v1::Program proto = ToProto(program);
  EXPECT_EQ(proto.version(), 5);
  EXPECT_EQ(ToProto(Lowered("zb-h1", false)[2]).version(), 4);  // it recomputes
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(WeightGradsOf(*back), WeightGradsOf(program));
}

TEST(MergeWeightGrads, WrongNumbersAndSlotsAreRefused) {
  const Program intact = Lowered("zb-h1", true)[2];
  const auto verdict = [&](auto damage) {
    Program program = intact;
    for (Instruction& instruction : program.body) {
      if (instruction.num_microbatches > 1) {
        damage(instruction);
        break;
      }
    }
    return std::string(CheckProgram(program).message());
  };
  EXPECT_EQ(verdict([](Instruction&) {}), "");
  for (const int number : {0, -1, 9, 1 << 30}) {
    EXPECT_THAT(verdict([&](Instruction& w) { w.num_microbatches = number; }),
                HasSubstr("is of more microbatches than it can be"));
  }
  EXPECT_THAT(verdict([&](Instruction& w) { --w.num_microbatches; }),
              HasSubstr("does not touch the slots"));
  EXPECT_THAT(verdict([&](Instruction& w) { std::swap(w.reads[1], w.reads.back()); }),
              HasSubstr("does not touch the slots"));
  Program forward = intact;
  const auto f = std::ranges::find(forward.body, Op::kForward, &Instruction::op);
  f->num_microbatches = 2;
  EXPECT_THAT(std::string(CheckProgram(forward).message()),
              HasSubstr("is of more microbatches than it can be"));
}

}  // namespace
}  // namespace takt::program
