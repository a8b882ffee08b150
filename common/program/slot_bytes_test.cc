// SPDX-License-Identifier: Apache-2.0
#include "common/program/slot_bytes.h"

#include <limits>

#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

TEST(SlotBytes, AddUpStashAndBuffersOfARank) {
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 8});
  const std::vector<Program> programs =
      Lower(*schedule, {.stages = {{.output_bytes = 10, .stash_bytes = 1000},
                                   {.first_layer = LayerId(1),
                                    .last_layer = LayerId(2),
                                    .output_bytes = 10,
                                    .stash_bytes = 3000}}})
          .value();
  const SlotBytes first = CountSlotBytes(programs[0]);
  EXPECT_EQ(first.stash, 2 * 1000);
  EXPECT_EQ(first.buffers, (2 + 2) * 10);  // two on their way out, two gradients
  EXPECT_EQ(first.total, 2040);
  const SlotBytes last = CountSlotBytes(programs[1]);
  EXPECT_EQ(last.stash, 3000);
  EXPECT_EQ(last.total, 3000 + last.buffers);
}

TEST(SlotBytes, LeaveOutWeightsAndNeverOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Program program;
  program.slots = {{.kind = SlotKind::kWeights, .bytes = 7},
                   {.kind = SlotKind::kGradient, .bytes = 7}};
  EXPECT_EQ(CountSlotBytes(program).total, 0);
  program.slots = {{.kind = SlotKind::kStash, .bytes = kMost},
                   {.kind = SlotKind::kInput, .bytes = kMost}};
  EXPECT_EQ(CountSlotBytes(program).total, kMost);
}

}  // namespace
}  // namespace takt::program
