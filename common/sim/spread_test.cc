// SPDX-License-Identifier: Apache-2.0
// Tests proof and simulation where the vocabulary is spread over all ranks.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/program/forward_only.h"
#include "common/schedule/spread_vocabulary.h"
#include "common/schedule/testing/any_family.h"
#include "common/sim/prove.h"
#include "common/sim/replay.h"
#include "common/sim/simulate.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::sim {
namespace {

using program::Program;
using ::testing::HasSubstr;

std::vector<Program> SpreadPrograms(std::string_view family, int ranks, int microbatches,
                                    const cost::Costs& costs = {}, int depth = 2) {
  const auto schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const auto spread = schedule::SpreadVocabulary(*schedule, costs, depth);
  EXPECT_TRUE(spread.ok()) << spread.status();
  auto programs = program::Lower(*spread, {.vocabulary = program::VocabularyShape{}});
  EXPECT_TRUE(programs.ok()) << programs.status();
  return *std::move(programs);
}

std::string Verdict(const std::vector<Program>& programs) {
  return std::string(Prove(programs).message());
}

TEST(SpreadProof, AcceptsFamilies) {
  for (const char* family : {"1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "interleaved-1f1b"}) {
    for (const int ranks : {2, 4}) {
      EXPECT_EQ(Verdict(SpreadPrograms(family, ranks, 8)), "") << family;
      EXPECT_EQ(Verdict(program::ForwardOnly(SpreadPrograms(family, ranks, 8))), "") << family;
    }
  }
}

TEST(SpreadProof, RefusesAMissingMeeting) {
  const auto verdict_without = [](int rank, std::string_view instruction) {
    auto programs = SpreadPrograms("1f1b", 2, 2);
    Erase(programs[rank], instruction);
    return Verdict(programs);
  };
  EXPECT_THAT(verdict_without(0, "SHARE(0)"), HasSubstr("rank 0 2S0 finds another head input"));
  EXPECT_THAT(verdict_without(0, "GATHER(1)"),
              HasSubstr("rank 0 2T1 does not find the parts of all ranks"));
  EXPECT_THAT(verdict_without(0, "RETURN(1)"), HasSubstr("rank 0 has 1 RETURN, must have 2"));
  EXPECT_THAT(verdict_without(1, "RETURN(1)"),
              HasSubstr("rank 1 1B1 finds another gradient of the head"));
  EXPECT_THAT(verdict_without(0, "ROWS(1)"), HasSubstr("rank 0 0F1 finds another activation"));
  EXPECT_THAT(verdict_without(1, "ROWS_GRAD(0)"), HasSubstr("rank 1 has 1 ROWS_GRAD, must have 2"));
}

TEST(SpreadProof, RefusesMeetingsInAnotherOrder) {
  auto programs = SpreadPrograms("1f1b", 2, 2);
  Swap(programs[1], "ROWS(0)", "ROWS(1)");
  EXPECT_THAT(Verdict(programs), HasSubstr("the programs never complete"));
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 1 ROWS(1) waits for rank 0"));
}

TEST(SpreadProof, RefusesPassesInAnotherOrder) {
  auto programs = SpreadPrograms("1f1b", 2, 2);
  Swap(programs[0], "2S0", "2T0");
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 0 2T0"));
  programs = SpreadPrograms("1f1b", 2, 2);
  Double(programs[0], "ROWS_GRAD(0)");
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 0 has 3 ROWS_GRAD, must have 2"));
}

TEST(SpreadProof, RefusesALossThatIsNotTheRoots) {
  auto programs = SpreadPrograms("1f1b", 2, 2);
  const auto& slots = programs[0].slots;
  const auto scalars = std::find_if(slots.begin(), slots.end(), [](const program::Slot& slot) {
    return slot.kind == program::SlotKind::kScalars;
  });
  ASSERT_NE(scalars, slots.end());
  const SlotId slot(static_cast<std::int32_t>(scalars - slots.begin()));
  program::Instruction& backward = Find(programs[0], "2T0");
  backward.reads.push_back(slot);
  backward.writes.push_back(slot);
  EXPECT_THAT(Verdict(programs), HasSubstr("reports a loss and is not the root"));
}

TEST(SpreadProof, RefusesRowsThatTheNormLeavesOut) {
  auto programs = SpreadPrograms("1f1b", 2, 2);
  const auto& slots = programs[0].slots;
  std::erase_if(Find(programs[0], "NORM_PARTIAL").reads, [&](SlotId slot) {
    return slots[slot.value()].stage == StageId(2) && slots[slot.value()].index == 1;
  });
  EXPECT_THAT(Verdict(programs), HasSubstr("counts its rows 0 times in the norm"));
}

TEST(SpreadSimulation, IsShorterThanAHeavyHead) {
  constexpr int kRanks = 4, kMicrobatches = 16;
  cost::Costs last;
  last.forward = last.input_grad = last.weight_grad = {1, 1, 1, 4};
  last.backward = {2, 2, 2, 8};
  cost::Costs spread;
  spread.vocabulary_forward = {3.0 / kRanks};
  spread.vocabulary_backward = {6.0 / kRanks};
  for (const char* family : {"1f1b", "zb-h1"}) {
    const auto of_last = Simulate(Programs(family, kRanks, kMicrobatches), last);
    const auto of_all = Simulate(SpreadPrograms(family, kRanks, kMicrobatches, spread), spread);
    ASSERT_TRUE(of_last.ok() && of_all.ok());
    EXPECT_LT(of_all->makespan, 0.7 * of_last->makespan) << family;
    // Each rank is as busy as the others.
    for (const RankReport& rank : of_all->ranks) {
      EXPECT_NEAR(rank.busy, kMicrobatches * (3 + 9.0 / kRanks), 1e-9);
    }
  }
}

TEST(SpreadSimulation, CountsMeetings) {
  cost::Costs costs;
  costs.vocabulary_forward = costs.vocabulary_backward = {1};
  costs.link.latency = 0.5;
  // With one microbatch, all of this is in a row: ROWS, F, message, F, SHARE, S, GATHER, T, RETURN,
  // B, message, B, ROWS_GRAD. Two ranks meet in one round.
  const auto report = Simulate(SpreadPrograms("1f1b", 2, 1, costs, /*depth=*/0), costs);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_DOUBLE_EQ(report->makespan, 1 + 1 + 1 + 1 + 2 + 2 + 7 * 0.5);
  EXPECT_EQ(report->critical_path.front().action, "ROWS(0)");
  EXPECT_EQ(report->critical_path.back().action, "ROWS_GRAD(0)");
}

// Ranks of one copy of the pipeline meet over the vocabulary, and the copies meet in their sums.
TEST(SpreadSimulation, KeepsCopiesApart) {
  const auto spread = schedule::SpreadVocabulary(
      schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 2}).value(), {}, 1);
  const auto programs = program::Lower(
      spread.value(), {.reduce_gradients = true, .vocabulary = program::VocabularyShape{}});
  const std::vector<Program> copies = SpreadOverCopies(programs.value(), 2);
  Durations durations;
  for (std::size_t rank = 0; rank < copies.size(); ++rank) {
    std::vector<double>& of_rank = durations.emplace_back();
    for (const program::Instruction& instruction : copies[rank].body) {
      const bool slow = rank % 2 == 1 && instruction.op == program::Op::kVocabularyForward;
      of_rank.push_back(slow ? 10 : 1);
    }
  }
  const auto replayed = Replay(copies, durations);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  const auto end_of = [&](int rank, std::string_view text) {
    return replayed->spans[rank][IndexOf(copies[rank], text)].end;
  };
  EXPECT_LT(end_of(0, "GATHER(1)"), end_of(1, "GATHER(1)"));
  EXPECT_EQ(end_of(0, "REDUCE_GRAD(rows 0)"), end_of(1, "REDUCE_GRAD(rows 0)"));
}

RC_GTEST_PROP(SpreadProperty, ProgramsOfAnyFamilyCompleteForAnyCosts, ()) {
  using schedule::Uniform;
  const schedule::Schedule schedule = schedule::AnyFamily();
  RC_PRE(schedule::MaySpread(schedule));
  cost::Costs costs;
  costs.vocabulary_forward = {Uniform(0, 5) * 0.5};
  costs.vocabulary_backward = {Uniform(0, 5) * 0.5};
  costs.link.latency = Uniform(0, 3) * 0.25;
  const int depth = Uniform(0, 4);
  const auto spread = schedule::SpreadVocabulary(schedule, costs, depth);
  RC_PRE(depth == 0 || spread.ok());
  RC_ASSERT(spread.ok());
  const auto programs = program::Lower(*spread, {.reduce_gradients = Uniform(0, 2) == 0,
                                                 .tied_embeddings = Uniform(0, 2) == 0,
                                                 .merge_weight_grads = Uniform(0, 2) == 0,
                                                 .optimizer = Uniform(0, 2) == 0,
                                                 .vocabulary = program::VocabularyShape{}});
  RC_ASSERT(programs.ok());
  RC_ASSERT(Prove(*programs, {.one_fifo_per_pair = Uniform(0, 2) == 0}).ok());
  RC_ASSERT(Prove(program::ForwardOnly(*programs)).ok());
  RC_ASSERT(Simulate(*programs, costs, {.steps = 2}).ok());
}

}  // namespace
}  // namespace takt::sim
