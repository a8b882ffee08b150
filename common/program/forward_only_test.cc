// SPDX-License-Identifier: Apache-2.0
#include "common/program/forward_only.h"

#include "absl/strings/str_join.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

std::vector<Program> Lowered(int ranks, int microbatches) {
  const auto schedule =
      schedule::Generate("1f1b", {.num_ranks = ranks, .num_microbatches = microbatches});
  return Lower(*schedule, {.reduce_gradients = true, .tied_embeddings = true}).value();
}

std::string Body(const Program& program) {
  return absl::StrJoin(program.body, " ", [&](std::string* out, const Instruction& instruction) {
    out->append(ToString(instruction, program));
  });
}

TEST(ForwardOnly, KeepsForwardsAndTheirMessages) {
  const std::vector<Program> programs = ForwardOnly(Lowered(2, 2));
  EXPECT_EQ(Body(programs[0]), "LOAD 0F0 0SEND_F0 0F1 0SEND_F1 EVAL");
  EXPECT_EQ(Body(programs[1]), "LOAD 0RECV_F0 0RECV_F1 1F0 1F1 EVAL");
  for (const Program& program : programs) EXPECT_TRUE(CheckProgram(program).ok());
}

TEST(ForwardOnly, KeepsTheForwardOfAPair) {
  const auto schedule = schedule::ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "t").value();
  const Program program = ForwardOnly(Lower(schedule, {}).value())[0];
  EXPECT_EQ(Body(program), "LOAD 0F0 0F1 EVAL");
  EXPECT_TRUE(CheckProgram(program).ok());
}

TEST(ForwardOnly, SharesOneStashAndDropsWhatNobodyUses) {
  const std::vector<Program> programs = ForwardOnly(Lowered(4, 8));
  int stashes = 0;
  for (const Slot& slot : programs[0].slots) {
    stashes += slot.kind == SlotKind::kStash ? 1 : 0;
    EXPECT_NE(slot.kind, SlotKind::kGradient);
    EXPECT_NE(slot.kind, SlotKind::kOutputGrad);
  }
  EXPECT_EQ(stashes, 1);
}

}  // namespace
}  // namespace takt::program
