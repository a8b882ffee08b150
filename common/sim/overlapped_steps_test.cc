// SPDX-License-Identifier: Apache-2.0
// Tests that steps without a barrier are proved, how long they take, and that the forwards ahead
// can run again between any two of them.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/program/program_serde.h"
#include "common/program/remove_barrier.h"
#include "common/sim/machine.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::GathersForeseen;
using program::Instruction;
using program::Op;
using program::Program;
using program::RemoveBarrier;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kFamilies[] = {"gpipe", "1f1b", "zb-h1",           "zb-h2",
                                          "zb-2p", "zb-v", "interleaved-1f1b"};

std::vector<Program> Overlapped(std::string_view family, int ranks, int microbatches,
                                const program::LowerOptions& options = {}) {
  absl::StatusOr<std::vector<Program>> steps =
      RemoveBarrier(Programs(family, ranks, microbatches, options));
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.ok() ? *std::move(steps) : std::vector<Program>();
}

constexpr program::LowerOptions kShards{.reduce_gradients = true, .shard_optimizer = true};

// Returns the time that one step more takes, after some.
double Period(const std::vector<Program>& programs) {
  return Simulate(programs, {}, {.steps = 8}).value().step_time;
}

TEST(OverlappedSteps, AreProvedForFamiliesAndSums) {
  for (const std::string_view family : kFamilies) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool sums : {false, true}) {
        SCOPED_TRACE(std::string(family) + " on " + std::to_string(ranks) +
                     (sums ? " summed" : ""));
        const absl::Status status = Prove(
            Overlapped(family, ranks, 8, {.reduce_gradients = sums, .tied_embeddings = sums}));
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

TEST(OverlappedSteps, AreProvedWhereReplicasShareTheOptimizersState) {
  for (const std::string_view family : kFamilies) {
    for (const int ranks : {1, 2, 4}) {
      const absl::Status status = Prove(Overlapped(family, ranks, 8, kShards));
      EXPECT_TRUE(status.ok()) << family << " on " << ranks << ": " << status;
    }
  }
}

// The foreseen weights become whole before the norm is known, and the true ones behind OPT.
TEST(OverlappedSteps, GatherForeseenWeightsBeforeTheExchangeAndTrueOnesAtTheEnd) {
  const Program step = Overlapped("1f1b", 2, 4, kShards)[0];
  std::vector<std::string> ends;
  for (const Instruction& each : step.body) {
    const bool gathers = each.op == Op::kGatherWeights;
    if (GathersForeseen(each, step)) {
      ends.push_back("foreseen");
    } else if (gathers || each.op == Op::kNormExchange || each.op == Op::kOptimizer ||
               each.op == Op::kSpeculate) {
      ends.emplace_back(program::Name(each.op));
    }
  }
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  EXPECT_THAT(ends, ElementsAre("SPECULATE", "foreseen", "NORM_EXCHANGE", "OPT", "GATHER_WEIGHTS"));
}

TEST(OverlappedSteps, AreRefusedIfAForwardMeetsForeseenShards) {
  std::vector<Program> steps = Overlapped("1f1b", 2, 4, kShards);
  for (Program& program : steps) {
    const auto is_other = [&](const Instruction& each) { return !GathersForeseen(each, program); };
    std::ranges::stable_partition(program.body, is_other);  // behind the forwards ahead
  }
  EXPECT_THAT(std::string(Prove(steps).message()),
              HasSubstr("0F0 does not read every layer of its stage in one version"));
}

// A gather takes half as long as a sum, whichever weights it is of.
TEST(OverlappedSteps, TakeTheTimeOfBothGathers) {
  const std::vector<Program> steps = Overlapped("1f1b", 1, 1, kShards);
  cost::Costs costs;
  costs.reduction = {8};
  // The sum's half, both gathers, and F between these.
  const double free = Simulate(steps, {}, {.steps = 8}).value().step_time;
  EXPECT_NEAR(Simulate(steps, costs, {.steps = 8}).value().step_time, free + 3 * 4, 1e-9);
}

TEST(OverlappedSteps, RunTheForwardsBeforeTheFirstBackwardAhead) {
  std::vector<int> ahead;
  for (const Program& step : Overlapped("1f1b", 4, 8)) {
    const auto is_forward = [](const Instruction& each) { return each.op == Op::kForward; };
    ahead.push_back(static_cast<int>(std::ranges::count_if(step.prologue, is_forward)));
    EXPECT_EQ(std::ranges::count_if(step.body, is_forward), 8);
    EXPECT_EQ(step.body.back().op, Op::kOptimizer);
  }
  EXPECT_THAT(ahead, ElementsAre(4, 3, 2, 1));
}

// Where ranks are idle only because steps begin and end together, nothing of that is left.
TEST(OverlappedSteps, TakeTheSpanOfOneRank) {
  for (const std::string_view family : {"zb-h2", "zb-2p"}) {
    EXPECT_NEAR(Period(Programs(family, 4, 8)), 27, 1e-9) << family;
    EXPECT_NEAR(Period(Overlapped(family, 4, 8)), 24, 1e-9) << family;
  }
  // Its ranks wait for one another within the step as long as its ends last.
  EXPECT_NEAR(Period(Overlapped("1f1b", 4, 8)), 33, 1e-9);
}

TEST(OverlappedSteps, CompleteWithThePrologueBetweenThem) {
  const cost::Costs any;
  for (const std::string_view family : kFamilies) {
    SCOPED_TRACE(family);
    std::vector<Program> repeated = Overlapped(family, 4, 8);
    for (Program& program : repeated)
      std::ranges::copy(program.prologue, std::back_inserter(program.body));
    const auto refusal = Machine(repeated, any, {.steps = 3}).Run();
    EXPECT_FALSE(refusal.has_value()) << refusal->reason;
  }
}

// The forwards that run ahead must meet the weights that the rest of their step meets.
TEST(OverlappedSteps, AreRefusedIfAForwardMeetsTheWeightsBeforeTheUpdate) {
  std::vector<Program> steps = Overlapped("1f1b", 2, 4);
  for (Instruction& each : steps[0].body) {
    if (each.op != Op::kForward || each.step_ahead == 0) continue;
    for (SlotId& slot : each.reads) {
      const program::Slot& read = steps[0].slots[slot.value()];
      if (read.version != program::kForeseen) continue;
      for (std::size_t i = 0; i < steps[0].slots.size(); ++i) {
        const program::Slot& old = steps[0].slots[i];
        if (old.kind == read.kind && old.stage == read.stage && old.index == read.index &&
            old.version == 0) {
          slot = SlotId(static_cast<std::int32_t>(i));
          break;
        }
      }
    }
  }
  EXPECT_THAT(std::string(Prove(steps).message()), HasSubstr("meets other weights than its F"));
}

TEST(OverlappedSteps, AreRefusedIfTheyForeseeTooSoonOrUpdateBeforeTheExchange) {
  std::vector<Program> steps = Overlapped("zb-h1", 2, 4);
  Swap(steps[1], "SPECULATE", "NORM_PARTIAL");
  EXPECT_THAT(std::string(Prove(steps).message()),
              HasSubstr("SPECULATE comes before NORM_PARTIAL"));
  steps = Overlapped("zb-h1", 2, 4);
  Swap(steps[0], "NORM_EXCHANGE", "OPT");
  EXPECT_THAT(std::string(Prove(steps).message()), HasSubstr("OPT comes before NORM_EXCHANGE"));
}

TEST(OverlappedSteps, HaveAStoredForm) {
  for (const Program& program : Overlapped("zb-v", 2, 4)) {
    const v1::Program stored = program::ToProto(program);
    EXPECT_EQ(stored.version(), 11);
    const absl::StatusOr<Program> read = program::FromProto(stored);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(program::ToProto(*read).SerializeAsString(), stored.SerializeAsString());
    EXPECT_TRUE(program::OverlapsSteps(*read));
  }
}

TEST(OverlappedSteps, AreNotMadeOfWhatIsNotKnownYet) {
  const auto error_of = [](const std::vector<Program>& programs) {
    return std::string(RemoveBarrier(programs).status().message());
  };
  EXPECT_EQ(error_of(Programs("pipedream-2bw", 2, 4)),
            "program of pp rank 0 has no flush, which needs the barrier of its step");
  EXPECT_THAT(error_of(Programs("dualpipe", 4, 8)), HasSubstr("has two copies of the weights"));
  EXPECT_THAT(error_of(Programs("1f1b", 2, 4, {.optimizer = false})),
              HasSubstr("has no optimizer"));
}

}  // namespace
}  // namespace takt::sim
