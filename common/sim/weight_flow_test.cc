// SPDX-License-Identifier: Apache-2.0
// Tests programs whose ranks free weights that their replicas share.
#include "common/sim/weight_flow.h"

#include <string>
#include <string_view>
#include <vector>

#include "common/program/forward_only.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/text.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Program;
using ::testing::HasSubstr;

program::LowerOptions Frees() {
  return {.reduce_gradients = true, .shard_optimizer = true, .free_weights = true};
}

std::vector<Program> Lowered(std::string_view family, int ranks, int chunks, int microbatches) {
  const auto schedule = schedule::Generate(
      family, {.num_ranks = ranks, .num_microbatches = microbatches, .num_chunks = chunks});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return program::Lower(*schedule, Frees()).value();
}

// One rank with three stages, of which it has two whole at a time.
Program OneRank() {
  return program::Lower(schedule::ParseCsv("0F0,1F0,2F0,2B0,1B0,0B0\n", "t").value(), Frees())
      .value()[0];
}

std::string Verdict(const std::vector<Program>& programs) {
  return std::string(Prove(programs).message());
}

TEST(WeightFlow, NeedsTheBarrierOfAStep) {
  EXPECT_THAT(
      std::string(program::RemoveBarrier(Lowered("interleaved-1f1b", 2, 3, 4)).status().message()),
      HasSubstr("frees weights (parallelism.shard), which needs the barrier of its step"));
}

TEST(WeightFlow, EveryStageComputesWithWholeWeightsAndNoneStaysWhole) {
  for (const std::string_view family : {"interleaved-1f1b", "looped-bfs", "interleaved-zb"}) {
    for (const int chunks : {3, 4}) {
      SCOPED_TRACE(std::string(family) + " " + std::to_string(chunks));
      const std::vector<Program> programs = Lowered(family, 4, chunks, 8);
      EXPECT_EQ(Verdict(programs), "");
      for (const Program& program : programs)
        EXPECT_EQ(MostUnsharded(program), program::kMostUnsharded);
      const std::vector<Program> validation = program::ForwardOnly(programs);
      EXPECT_EQ(Verdict(validation), "");
      for (const Program& program : validation) {
        EXPECT_TRUE(FreesWeights(program));
        EXPECT_LE(MostUnsharded(program), program::kMostUnsharded);
      }
    }
  }
}

TEST(WeightFlow, ComputingWithoutWholeWeightsIsRefused) {
  Program program = OneRank();
  ASSERT_EQ(Verdict({program}), "");
  Erase(program, "UNSHARD(stage 0)");
  EXPECT_THAT(Verdict({program}), HasSubstr("0F0 finds no whole weights of its stage"));
}

TEST(WeightFlow, WeightsAreGatheredOnlyWhereNoneAreAndFreedOnlyWhereSomeAre) {
  Program program = OneRank();
  Erase(program, "RESHARD(stage 0)");
  EXPECT_THAT(Verdict({program}), HasSubstr("UNSHARD(stage 0) finds whole weights"));
  program = OneRank();
  Double(program, "RESHARD(stage 2)");
  EXPECT_THAT(Verdict({program}), HasSubstr("RESHARD(stage 2) finds no whole weights"));
}

TEST(WeightFlow, NoStageKeepsTheWeightsOfAStepThatHasEnded) {
  Program program = OneRank();
  Erase(program, "RESHARD(stage 2)");
  EXPECT_THAT(Verdict({program}), HasSubstr("OPT comes before RESHARD of stage 2"));
}

TEST(WeightFlow, AnUpdateIsOfEveryShard) {
  Program program = OneRank();
  Find(program, "OPT").writes.pop_back();
  EXPECT_THAT(Verdict({program}), HasSubstr("OPT does not update every layer and version once"));
}

// Gathers and sums take 2 each. 0F0 ends at 3, and as 1 is gathered meanwhile, 1F0 ends at 5. Stage
// 2 is gathered from 4 to 6, so 1B0 ends at 11, and the sums of 2 and 1 at 13. Then 0 is gathered
// again, and 0B0 runs until 17.
TEST(WeightFlow, GathersTakeHalfOfASumAndRunBesideOtherStages) {
  EXPECT_EQ(Simulate({OneRank()}, {.reduction = {4}}).value().makespan, 17 + 2);
}

}  // namespace
}  // namespace takt::sim
