// SPDX-License-Identifier: Apache-2.0
#include "common/trace/passes_alone.h"

#include "gtest/gtest.h"

namespace takt::trace {
namespace {

using program::Op;

constexpr StageId kFirst(0), kLast(1);

program::Instruction Pass(Op op, StageId stage, int num_microbatches = 1) {
  program::Instruction instruction;
  instruction.op = op;
  instruction.stage = stage;
  instruction.num_microbatches = num_microbatches;
  return instruction;
}

TEST(PassesAlone, HasTheMeanOfEachStage) {
  PassesAlone alone;
  alone.Add(Pass(Op::kForward, kFirst), 1);
  alone.Add(Pass(Op::kForward, kFirst), 3);
  alone.Add(Pass(Op::kBackward, kLast), 5);
  EXPECT_EQ(alone.Forward(kFirst), 2);
  EXPECT_EQ(alone.Forward(kLast), 0);
  EXPECT_EQ(alone.Backward(kLast), 5);
}

TEST(PassesAlone, ABackwardThatNeverRunsWholeHasTheTimeOfItsParts) {
  PassesAlone alone;
  alone.Add(Pass(Op::kInputGrad, kFirst), 2);
  EXPECT_EQ(alone.Backward(kFirst), 0);
  alone.Add(Pass(Op::kWeightGrad, kFirst, 4), 12);
  EXPECT_EQ(alone.Backward(kFirst), 5);
  alone.Add(Pass(Op::kBackward, kFirst), 4);
  EXPECT_EQ(alone.Backward(kFirst), 4);
}

TEST(PassesAlone, IgnoresPairsAndWhatIsNoPass) {
  PassesAlone alone;
  alone.Add(Pass(Op::kOverlap, kFirst), 9);
  alone.Add(Pass(Op::kSend, kFirst), 9);
  EXPECT_EQ(alone.Forward(kFirst), 0);
  EXPECT_EQ(alone.Backward(kFirst), 0);
}

}  // namespace
}  // namespace takt::trace
