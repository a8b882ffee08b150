// SPDX-License-Identifier: Apache-2.0
#include "common/program/sliced_head.h"

#include <vector>

#include "common/program/lowering.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/generate.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

TEST(BackwardFollowsForward, WhereALastStageRunsNothingAhead) {
  struct Expected {
    const char* schedule;
    int ranks;
    bool follows;
  };
  for (const auto& [name, ranks, follows] : {Expected{"1f1b", 3, true},
                                             {"1f1b", 1, true},
                                             {"gpipe", 3, false},
                                             {"zb-h1", 3, false},
                                             {"pipedream", 3, true},
                                             {"pipedream-2bw", 3, true},
                                             {"dualpipe-v", 2, false}}) {
    const auto schedule = schedule::Generate(name, {.num_ranks = ranks, .num_microbatches = 6});
    ASSERT_TRUE(schedule.ok()) << name << ": " << schedule.status();
    const std::vector<Program> programs = Lower(*schedule, {}).value();
    int holders = 0;
    for (const Program& program : programs) {
      const StageId last(program.num_stages - 1);
      const bool holds = HeldStages(program).contains(last);
      EXPECT_EQ(BackwardFollowsForward(program, last), holds && follows) << name;
      holders += holds ? 1 : 0;
    }
    EXPECT_EQ(holders, 1) << name;
    EXPECT_FALSE(ranks > 1 && BackwardFollowsForward(programs[0], StageId(0))) << name;
  }
}

// The first forward of a step runs in the body before it.
TEST(BackwardFollowsForward, NotWhereStepsOverlap) {
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 6});
  const std::vector<Program> programs = Lower(*schedule, {}).value();
  ASSERT_TRUE(BackwardFollowsForward(programs[1], StageId(1)));
  const absl::StatusOr<std::vector<Program>> overlapped = RemoveBarrier(programs);
  ASSERT_TRUE(overlapped.ok()) << overlapped.status();
  EXPECT_FALSE(BackwardFollowsForward((*overlapped)[1], StageId(1)));
}

TEST(SlicesHead, WhereTheRowsAreSeveralSlices) {
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 6});
  const std::vector<Program> programs = Lower(*schedule, {}).value();
  model::Model model{.config = {.context = 10}, .microbatch = 2};
  EXPECT_FALSE(SlicesHead(model, programs[1]));
  for (const std::int64_t slice : {20, 30}) {
    model.head_slice = slice;
    EXPECT_FALSE(SlicesHead(model, programs[1])) << slice;
  }
  model.head_slice = 19;
  EXPECT_TRUE(SlicesHead(model, programs[1]));
  EXPECT_FALSE(SlicesHead(model, programs[0]));
  model.tensor = {.size = 2, .leaves = 2};
  EXPECT_FALSE(SlicesHead(model, programs[1]));
}

}  // namespace
}  // namespace takt::program
