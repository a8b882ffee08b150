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

TEST(SimulateExecuted, DoesAsSimulateWithoutPairs) {
  const auto programs = Programs("zb-h1", 4, 8);
  const cost::Costs costs{.link = {.latency = 0.25}};
  EXPECT_EQ(SimulateExecuted(programs, costs).value().makespan,
            Simulate(programs, costs).value().makespan);
  EXPECT_EQ(SimulateExecuted(programs, {.forward = {-1}}).status(),
            Simulate(programs, {.forward = {-1}}).status());
}

}  // namespace
}  // namespace takt::sim
