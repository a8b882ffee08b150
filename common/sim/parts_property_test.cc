// SPDX-License-Identifier: Apache-2.0
// Runs small meshes as chains side by side, whose ranks meet inside what they compute. The proof
// looks at one chain alone. These tests hold what it concludes: all chains together complete,
// whatever anything takes.
#include <algorithm>
#include <optional>
#include <vector>

#include "common/cost/costs.h"
#include "common/program/lowering.h"
#include "common/program/part_lists.h"
#include "common/program/testing/any_stages.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "common/sim/machine.h"
#include "common/sim/prove.h"
#include "common/sim/replay.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Part;
using program::PartGroup;
using program::PartKind;
using program::Program;
using schedule::Uniform;

Part AnyPart() {
  if (Uniform(0, 2) == 0) return {};
  const PartGroup group = Uniform(0, 2) == 0 ? PartGroup::kTensor : PartGroup::kContext;
  return {static_cast<PartKind>(Uniform(2, 5)), group};
}

std::vector<Part> AnyParts() {
  std::vector<Part> parts;
  for (int left = Uniform(0, 5); left > 0; --left) parts.push_back(AnyPart());
  return parts;
}

std::vector<program::StageShape> AnyShares(int num_stages) {
  std::vector<program::StageShape> stages = program::AnyStages(num_stages);
  for (program::StageShape& stage : stages) {
    stage.layers.clear();
    stage.layers.push_back(
        {.forward = AnyParts(), .input_grad = AnyParts(), .weight_grad = AnyParts()});
  }
  return stages;
}

// Every instruction and meeting of every rank has a time of its own.
Durations AnyTimes(const std::vector<Program>& programs, bool of_meetings) {
  Durations durations;
  for (const Program& program : programs) {
    const std::size_t count = of_meetings ? MeetingOffsets(program).back() : program.body.size();
    std::vector<double>& of_rank = durations.emplace_back();
    for (std::size_t i = 0; i < count; ++i) of_rank.push_back(Uniform(0, 20) / 4.0);
  }
  return durations;
}

// Returns whether a rank meets others of this group in an instruction.
bool Meets(const Program& program, const Instruction& instruction, PartGroup group) {
  return std::ranges::any_of(PartListOf(instruction, program), [group](const Part& part) {
    return part.meets() && part.group == group;
  });
}

struct Sizes {
  int data = 1, context = 1, tensor = 1;
  int num_chains() const { return data * context * tensor; }
};

// A send is a rendezvous here. Without it there are fewer waits, so nothing more can stall.
RC_GTEST_PROP(PartsProperty, ChainsThatMeetInsidePassesCompleteWhateverTheyTake, ()) {
  const schedule::Schedule schedule =
      Uniform(0, 2) == 0 ? schedule::AnyFamily() : schedule::AnyOrder();
  const auto chain = program::Lower(schedule, {.stages = AnyShares(schedule.num_stages),
                                               .reduce_gradients = Uniform(0, 2) == 0,
                                               .tied_embeddings = Uniform(0, 2) == 0});
  RC_ASSERT(chain.ok());
  const bool one_fifo = Uniform(0, 2) == 0;
  RC_ASSERT(Prove(*chain, {.one_fifo_per_pair = one_fifo}).ok());

  const Sizes sizes{.data = Uniform(1, 3), .context = Uniform(1, 3), .tensor = Uniform(1, 4)};
  const std::vector<Program> programs = SpreadOverCopies(*chain, sizes.num_chains());
  const Durations durations = AnyTimes(programs, false), meetings = AnyTimes(programs, true);
  const cost::Costs costs;
  Machine machine(programs, costs,
                  {.steps = 2,
                   .one_fifo_per_pair = one_fifo,
                   .durations = &durations,
                   .meetings = &meetings,
                   .tensor = sizes.tensor,
                   .context = sizes.context});
  const std::optional<Refusal> refusal = machine.Run();
  if (refusal.has_value()) RC_FAIL(refusal->reason);

  // Nobody has passed a meeting before all others have come to it.
  const auto check = [&](int rank, int other, PartGroup group) {
    for (std::size_t i = 0; i < programs[rank].body.size(); ++i) {
      if (!Meets(programs[rank], programs[rank].body[i], group)) continue;
      const auto index = static_cast<std::int32_t>(i);
      RC_ASSERT(machine.At(1, rank, index).end >= machine.At(1, other, index).start);
    }
  };
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    const int tp_rank = rank % sizes.tensor, cp_rank = rank / sizes.tensor % sizes.context;
    for (int i = 0; i < sizes.tensor; ++i) check(rank, rank - tp_rank + i, PartGroup::kTensor);
    for (int i = 0; i < sizes.context; ++i)
      check(rank, rank + (i - cp_rank) * sizes.tensor, PartGroup::kContext);
  }
}

std::vector<Program> TwoChains() {
  const Part gather = {PartKind::kGather, PartGroup::kTensor};
  return SpreadOverCopies(
      Programs("gpipe", 1, 2, {.stages = {{.layers = {{.forward = {{}, gather}}}}}}), 2);
}

TEST(Parts, ChainsInAnotherOrderNeverComplete) {
  std::vector<Program> programs = TwoChains();
  Swap(programs[1], "0F0", "0F1");
  const cost::Costs costs;
  Machine machine(programs, costs, {.tensor = 2});
  const std::optional<Refusal> refusal = machine.Run();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_THAT(refusal->reason, ::testing::HasSubstr("rank 0 0F0 gather(1) waits for rank 1"));
  EXPECT_THAT(refusal->reason, ::testing::HasSubstr("rank 1 0F1 gather(1) waits for rank 0"));
}

TEST(Parts, ARankWaitsWhereOthersAreLate) {
  const std::vector<Program> programs = TwoChains();
  Durations durations = AnyTimes(programs, false);
  for (std::vector<double>& of_rank : durations) std::ranges::fill(of_rank, 0.0);
  durations[1][IndexOf(programs[1], "0F1")] = 7;
  const cost::Costs costs;
  Machine machine(programs, costs, {.durations = &durations, .tensor = 2});
  ASSERT_FALSE(machine.Run().has_value());
  const auto end = [&](const char* text) {
    return machine.At(0, 0, static_cast<std::int32_t>(IndexOf(programs[0], text))).end;
  };
  EXPECT_EQ(end("0F0"), 0);
  EXPECT_EQ(end("0F1"), 7);
}

}  // namespace
}  // namespace takt::sim
