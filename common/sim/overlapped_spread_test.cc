// SPDX-License-Identifier: Apache-2.0
// Tests steps without a barrier where the vocabulary is spread over all ranks: they are proved, and
// no rank waits for the last weight gradients of another before it begins the next step.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "common/sim/machine.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;
using ::testing::HasSubstr;

constexpr std::string_view kFamilies[] = {"gpipe", "1f1b", "zb-h1",           "zb-h2",
                                          "zb-2p", "zb-v", "interleaved-1f1b"};

std::vector<Program> WithBarrier(std::string_view family, int ranks, int microbatches,
                                 program::LowerOptions options = {},
                                 const cost::Costs& costs = {}) {
  const auto schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const auto spread = schedule::SpreadVocabulary(*schedule, costs, /*depth=*/0);
  EXPECT_TRUE(spread.ok()) << spread.status();
  options.vocabulary = program::VocabularyShape{};
  return program::Lower(*spread, options).value();
}

std::vector<Program> Overlapped(const std::vector<Program>& programs) {
  absl::StatusOr<std::vector<Program>> steps = program::RemoveBarrier(programs);
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.ok() ? *std::move(steps) : std::vector<Program>();
}

std::string Verdict(const std::vector<Program>& programs) {
  return std::string(Prove(programs).message());
}

// The ways in which gradients of rows are summed and weights are gathered.
const program::LowerOptions kSums[] = {
    {},
    {.tied_embeddings = true},
    {.reduce_gradients = true},
    {.reduce_gradients = true, .tied_embeddings = true},
    {.reduce_gradients = true, .shard_optimizer = true},
    {.reduce_gradients = true, .tied_embeddings = true, .shard_optimizer = true}};

TEST(OverlappedSpread, IsProvedForFamiliesAndSums) {
  for (const std::string_view family : kFamilies) {
    for (const int ranks : {2, 4}) {
      for (const program::LowerOptions& sums : kSums) {
        SCOPED_TRACE(std::string(family) + " on " + std::to_string(ranks));
        const std::vector<Program> steps = Overlapped(WithBarrier(family, ranks, 8, sums));
        for (const Program& step : steps) EXPECT_EQ(CheckProgram(step), absl::OkStatus());
        EXPECT_EQ(Verdict(steps), "");
      }
    }
  }
}

// Returns the time of one step more, where the head is a quarter of a rank's work.
double Period(const std::vector<Program>& programs, const cost::Costs& costs) {
  return Simulate(programs, costs, {.steps = 8}).value().step_time;
}

// Each rank computes 60 units, or 108 in two stages. With the barrier three more are lost to fill
// and drain, however replicas sum.
TEST(OverlappedSpread, TakesTheSpanOfOneRank) {
  cost::Costs costs;
  costs.vocabulary_forward = {0.25};
  costs.vocabulary_backward = {0.5};
  for (const program::LowerOptions& sums : kSums) {
    const auto one_way = WithBarrier("zb-h2", 4, 16, sums, costs);
    EXPECT_NEAR(Period(one_way, costs), 63, 1e-9);
    EXPECT_NEAR(Period(Overlapped(one_way), costs), 60, 1e-9);
    const auto in_a_v = WithBarrier("zb-v", 4, 16, sums, costs);
    EXPECT_NEAR(Period(in_a_v, costs), 111, 1e-9);
    EXPECT_NEAR(Period(Overlapped(in_a_v), costs), 108, 1e-9);
    // The last W of rank 0 hides a short sum of rows. With shards S would wait for the true rows.
    if (sums.shard_optimizer) continue;
    cost::Costs with_sums = costs;
    with_sums.reduction = {0, 0, 0, 0, 0.5};
    EXPECT_NEAR(Period(Overlapped(one_way), with_sums), 60, 1e-9);
  }
  // Its ranks wait for one another within the step as long as its ends last.
  const auto idle_inside = WithBarrier("zb-h1", 4, 16, {}, costs);
  EXPECT_NEAR(Period(idle_inside, costs), 63, 1e-9);
  EXPECT_NEAR(Period(Overlapped(idle_inside), costs), 63, 1e-9);
}

// Rows are foreseen beside what a rank computes, so that takes time only where nothing hides it.
TEST(OverlappedSpread, HidesThatRowsAreForeseen) {
  cost::Costs costs;
  costs.vocabulary_forward = {0.25};
  costs.vocabulary_backward = {0.5};
  const auto steps = Overlapped(WithBarrier("zb-h2", 4, 16, {}, costs));
  costs.optimizer = costs.embedding_update = {0.5};
  // Rank 0 has one W left when the gradients of rows are complete. OPT takes half a unit.
  EXPECT_NEAR(Period(steps, costs), 60.5, 1e-9);
}

TEST(OverlappedSpread, BeginsThePrologueWithRowsOnAllRanks) {
  std::vector<std::vector<std::string>> meetings;
  for (const Program& step : Overlapped(WithBarrier("zb-h2", 4, 16))) {
    const auto is_first = [](const Instruction& each) {
      return each.op == Op::kLoad || each.op == Op::kRows;
    };
    EXPECT_TRUE(std::ranges::is_partitioned(step.prologue, is_first));
    std::vector<std::string>& of_rank = meetings.emplace_back();
    for (const Instruction& each : step.prologue) {
      if (is_first(each)) of_rank.push_back(ToString(each, step));
    }
    EXPECT_EQ(of_rank.size(), 1U + 6);  // 4 forwards ahead on rank 0, and ROWS come 2 before them
  }
  EXPECT_THAT(meetings, ::testing::Each(meetings[0]));
}

TEST(OverlappedSpread, CompletesWithThePrologueBetweenSteps) {
  const cost::Costs any;
  for (const std::string_view family : kFamilies) {
    SCOPED_TRACE(family);
    std::vector<Program> repeated = Overlapped(WithBarrier(family, 4, 8));
    for (Program& program : repeated)
      std::ranges::copy(program.prologue, std::back_inserter(program.body));
    const auto refusal = Machine(repeated, any, {.steps = 3}).Run();
    EXPECT_FALSE(refusal.has_value()) << refusal->reason;
  }
}

TEST(OverlappedSpread, IsRefusedIfRowsAreThoseBeforeTheUpdate) {
  std::vector<Program> steps = Overlapped(WithBarrier("zb-h2", 2, 4));
  Program& program = steps[1];
  for (Instruction& each : program.body) {
    if (each.op != Op::kRows || each.step_ahead == 0) continue;
    for (const Instruction& first : program.prologue) {
      if (first.op == Op::kRows && first.microbatch == each.microbatch) each.reads = first.reads;
    }
  }
  EXPECT_THAT(Verdict(steps), HasSubstr("rank 1 ROWS(0) meets the rows of another step"));
}

TEST(OverlappedSpread, IsRefusedIfRowsAreForeseenTooSoonOrNotByAll) {
  std::vector<Program> steps = Overlapped(WithBarrier("zb-h2", 2, 4));
  Swap(steps[0], "SPECULATE(rows)", "ROWS_GRAD(3)");
  EXPECT_THAT(Verdict(steps),
              HasSubstr("rank 0 SPECULATE(rows) comes before the gradient of layer 0 is complete"));
  steps = Overlapped(WithBarrier("zb-h2", 2, 4));
  Erase(steps[1], "SPECULATE(rows)");
  EXPECT_THAT(Verdict(steps), HasSubstr("rank 1 ROWS(0) meets the rows of another step"));
  steps = Overlapped(WithBarrier("zb-h2", 2, 4));
  Double(steps[1], "SPECULATE(rows)");
  EXPECT_THAT(Verdict(steps), HasSubstr("has 3 SPECULATE; every rank has 2 where any has"));
}

TEST(OverlappedSpread, IsRefusedIfRowsComeBeforeTheNextTokens) {
  std::vector<Program> steps = Overlapped(WithBarrier("1f1b", 2, 4));
  std::erase_if(steps[0].body, [](const Instruction& each) { return each.op == Op::kLoad; });
  EXPECT_THAT(Verdict(steps), HasSubstr("rank 0 ROWS(0) finds other tokens"));
}

TEST(OverlappedSpread, ForeseesRowsOnTheLaneOfMeetings) {
  Program step = Overlapped(WithBarrier("1f1b", 2, 4))[0];
  Find(step, "SPECULATE(rows)").lane = Find(step, "SPECULATE").lane;
  EXPECT_THAT(std::string(CheckProgram(step).message()), HasSubstr("is on a lane of another kind"));
}

TEST(OverlappedSpread, HasAStoredForm) {
  for (const Program& program : Overlapped(WithBarrier("zb-v", 2, 4))) {
    const v1::Program stored = program::ToProto(program);
    EXPECT_EQ(stored.version(), 12);
    const absl::StatusOr<Program> read = program::FromProto(stored);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(program::ToProto(*read).SerializeAsString(), stored.SerializeAsString());
  }
}

}  // namespace
}  // namespace takt::sim
