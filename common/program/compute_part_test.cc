// SPDX-License-Identifier: Apache-2.0
#include "common/program/compute_part.h"

#include <vector>

#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using testing::ElementsAreArray;

// Stages of two layers each, so that lists of weights are runs.
std::vector<Program> TwoLayerStages(int num_ranks) {
  LowerOptions options;
  for (int s = 0; s < num_ranks; ++s) {
    options.stages.push_back({.first_layer = LayerId(2 * s), .last_layer = LayerId(2 * s + 2)});
  }
  return Lower(schedule::Generate("1f1b", {.num_ranks = num_ranks, .num_microbatches = 4}).value(),
               options)
      .value();
}

Instruction Overlap(const Instruction& forward, const Instruction& backward) {
  Instruction overlap = forward;
  overlap.op = Op::kOverlap;
  overlap.backward_stage = backward.stage;
  overlap.backward_microbatch = backward.microbatch;
  for (const SlotId slot : backward.reads) overlap.reads.push_back(slot);
  for (const SlotId slot : backward.writes) overlap.writes.push_back(slot);
  return overlap;
}

// A first, a middle, a last and an only stage have different slots.
TEST(ComputePart, CutsEveryOverlappedPairIntoWhatItWasMadeOf) {
  int pairs = 0;
  for (const int num_ranks : {1, 3}) {
    for (const Program& program : TwoLayerStages(num_ranks)) {
      for (const Instruction& forward : program.body) {
        for (const Instruction& backward : program.body) {
          if (forward.op != Op::kForward || backward.op != Op::kBackward) continue;
          const Instruction overlap = Overlap(forward, backward);
          const OverlapParts parts = PartsOf(overlap, program);
          ++pairs;
          EXPECT_EQ(ToString(parts.forward), ToString(forward, program));
          EXPECT_EQ(ToString(parts.backward), ToString(backward, program));
          EXPECT_THAT(parts.forward.reads, ElementsAreArray(forward.reads));
          EXPECT_THAT(parts.forward.writes, ElementsAreArray(forward.writes));
          EXPECT_THAT(parts.backward.reads, ElementsAreArray(backward.reads));
          EXPECT_THAT(parts.backward.writes, ElementsAreArray(backward.writes));
        }
      }
    }
  }
  EXPECT_EQ(pairs, 4 * 16);
}

}  // namespace
}  // namespace takt::program
