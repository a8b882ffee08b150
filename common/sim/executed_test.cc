// SPDX-License-Identifier: Apache-2.0
#include "common/sim/executed.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/schedule/text.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<program::Program> Lowered(const char* csv, const program::LowerOptions& options = {}) {
  return program::Lower(schedule::ParseCsv(csv, "pair.csv").value(), options).value();
}

TEST(SimulateExecuted, SendsTheResultOfTheForwardBeforeTheBackward) {
  const auto programs = Lowered("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(Simulate(programs, {}).value().makespan, 12);
  // The F runs while rank 1 has microbatch 0, and the B begins with its gradient.
  const Report report = SimulateExecuted(programs, {}).value();
  EXPECT_EQ(report.makespan, 9);
  EXPECT_EQ(report.ranks[0].busy, 6);
  EXPECT_EQ(report.ranks[0].peak_in_flight, 2);
}

TEST(SimulateExecuted, ReportsAPairAsOneWithoutTheTimeBetweenItsHalves) {
  const Report report =
      SimulateExecuted(Lowered("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"), {}).value();
  ASSERT_EQ(report.events.size(), 7U);
  const Event& pair = report.events[1];
  EXPECT_EQ(pair.pp_rank, 0);
  EXPECT_EQ(pair.start, 3);  // the F ran from 1 to 2
  EXPECT_EQ(pair.end, 6);
  EXPECT_EQ(report.events[2].start, 7);
  EXPECT_EQ(report.events[3].pp_rank, 1);
}

TEST(SimulateExecuted, NamesInstructionsOfTheWholePrograms) {
  for (const char* const family : {"dualpipe", "dualpipe-v"}) {
    const auto programs = Programs(family, 4, 8);
    const cost::Costs costs{.link = {.latency = 0.1}};
    const Report whole = Simulate(programs, costs).value();
    const Report report = SimulateExecuted(programs, costs, {.follow_memory = true}).value();
    EXPECT_LT(report.makespan, whole.makespan);
    EXPECT_EQ(report.num_messages, whole.num_messages);
    ASSERT_EQ(report.events.size(), whole.events.size());
    for (std::size_t i = 0; i < report.events.size(); ++i) {
      const Event& event = report.events[i];
      EXPECT_EQ(event.pp_rank, whole.events[i].pp_rank);
      EXPECT_EQ(event.instruction, whole.events[i].instruction);
      EXPECT_NEAR(event.end - event.start, whole.events[i].end - whole.events[i].start, 1e-9);
    }
    for (const CriticalLink& link : report.critical_path) {
      const program::Program& program = programs[link.pp_rank];
      const program::Instruction& instruction = program.body[link.instruction];
      EXPECT_THAT(ToString(instruction, program), HasSubstr(link.action.substr(1)));
    }
    EXPECT_EQ(report.held.size(), programs.size());
  }
}

TEST(SimulateExecuted, FollowsBothHalvesOfAPairOnTheCriticalPath) {
  const auto programs = Lowered("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  // What O costs is for halves that run side by side.
  const Report report = SimulateExecuted(programs, {.overlap = {2.5}}).value();
  EXPECT_EQ(report.makespan, 6);
  std::vector<std::pair<std::string, program::Op>> path;
  for (const CriticalLink& link : report.critical_path)
    path.emplace_back(link.action, programs[0].body[link.instruction].op);
  using program::Op;
  EXPECT_THAT(path, ElementsAre(std::pair("0F0", Op::kForward), std::pair("0F1", Op::kOverlap),
                                std::pair("0B0", Op::kOverlap), std::pair("0B1", Op::kBackward)));
}

TEST(SimulateExecuted, KeepsPairsWholeWhoseHalvesRunSideBySide) {
  using program::Part;
  const Part gather = {program::PartKind::kGather, program::PartGroup::kTensor};
  const std::vector<Part> pass = {gather, Part{}, gather};
  const auto programs = Lowered("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",
                                {.stages = {{.layers = {{.forward = pass, .input_grad = pass}}}}});
  cost::Costs costs{.tensor = {{.size = 2, .link = {.latency = 0.5}}}};
  const auto pair_seconds = [&] {
    const Event pair = SimulateExecuted(programs, costs).value().events[1];
    return pair.end - pair.start;
  };
  EXPECT_EQ(pair_seconds(), 3);  // one half computes while the other one meets
  costs.halves_run_beside = false;
  EXPECT_EQ(pair_seconds(), 1 + 2 + 4 * 0.5);
}

TEST(SimulateExecuted, AddsTheTimeOfASplitPairToEachStep) {
  const auto programs = Programs("dualpipe-v", 4, 8);
  const double one = SimulateExecuted(programs, {}).value().makespan;
  EXPECT_EQ(one, 51);
  EXPECT_EQ(SimulateExecuted(programs, {}, {.steps = 3}).value().step_time, one);
  // On GPUs no half hides the meetings of the other one, of which there are none here.
  EXPECT_EQ(SimulateExecuted(programs, {.halves_run_beside = false}).value().makespan, one);
}

TEST(SimulateExecuted, DoesAsSimulateWithoutPairs) {
  const auto programs = Programs("zb-h1", 4, 8);
  const cost::Costs costs{.link = {.latency = 0.25}};
  const Report whole = Simulate(programs, costs).value();
  const Report report = SimulateExecuted(programs, costs).value();
  EXPECT_EQ(report.makespan, whole.makespan);
  EXPECT_EQ(report.events.size(), whole.events.size());
  EXPECT_EQ(SimulateExecuted(programs, {.forward = {-1}}).status(),
            Simulate(programs, {.forward = {-1}}).status());
}

}  // namespace
}  // namespace takt::sim
