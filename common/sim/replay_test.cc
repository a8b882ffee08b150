// SPDX-License-Identifier: Apache-2.0
#include "common/sim/replay.h"

#include "common/sim/simulate.h"
#include "common/sim/testing/program_edit.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Program;

// The durations of F and B as Simulate has them. Everything else takes no time.
Durations UnitDurations(const std::vector<Program>& programs) {
  Durations durations;
  for (const Program& program : programs) {
    std::vector<double>& of_rank = durations.emplace_back(program.body.size(), 0.0);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (program.body[i].op == program::Op::kForward) of_rank[i] = 1;
      if (program.body[i].op == program::Op::kBackward) of_rank[i] = 2;
    }
  }
  return durations;
}

TEST(Replay, TakesAsLongAsTheSimulationOfTheSameCosts) {
  for (const char* family : {"naive", "gpipe", "1f1b", "interleaved-1f1b", "chimera"}) {
    const std::vector<Program> programs = Programs(family, 4, 8);
    EXPECT_DOUBLE_EQ(Replay(programs, UnitDurations(programs)).value().step_time,
                     Simulate(programs, {}).value().makespan)
        << family;
  }
}

// Programs of one stage, one microbatch and one layer, in which ranks meet before F and after it.
std::vector<Program> TwoThatMeet() {
  const program::Part gather = {program::PartKind::kGather, program::PartGroup::kTensor};
  return SpreadOverCopies(
      Programs("1f1b", 1, 1, {.stages = {{.layers = {{.forward = {gather, {}, gather}}}}}}), 2);
}

TEST(Replay, RanksThatShareALayerWaitForOneAnotherInsideIt) {
  const std::vector<Program> programs = TwoThatMeet();
  Durations durations = UnitDurations(programs);
  durations[1][IndexOf(programs[1], "0F0")] = 5;
  const Durations meetings = {{0.5, 0.25}, {0.5, 0.25}};
  const ReplayOptions options{.meetings = &meetings, .tensor = 2};
  const Replayed replayed = Replay(programs, durations, options).value();
  EXPECT_DOUBLE_EQ(replayed.step_time, 0.5 + 5 + 0.25 + 2);
  const std::size_t forward = IndexOf(programs[0], "0F0");
  EXPECT_EQ(replayed.spans[0][forward].end, replayed.spans[1][forward].end);
  // As two chains that have nothing to do with each other, they only meet at the end of a step.
  EXPECT_DOUBLE_EQ(Replay(programs, durations, {.meetings = &meetings}).value().step_time, 7.75);
  EXPECT_LT(Replay(programs, durations, {.meetings = &meetings}).value().spans[0][forward].end,
            replayed.spans[1][forward].end);
}

TEST(Replay, RefusesMeetingsThatTheProgramsDoNotHave) {
  const std::vector<Program> programs = TwoThatMeet();
  const Durations durations = UnitDurations(programs);
  for (const Durations& meetings : {Durations{{1, 1}}, Durations{{1}, {1}}, Durations{{1, -1}, {}}})
    EXPECT_FALSE(Replay(programs, durations, {.meetings = &meetings}).ok());
  EXPECT_FALSE(Replay(programs, durations, {.tensor = 3}).ok());
}

TEST(Replay, OneSlowInstructionDelaysOnlyWhatWaitsForIt) {
  const std::vector<Program> programs = Programs("1f1b", 4, 8);
  Durations durations = UnitDurations(programs);
  // The last rank is never idle between its first F and its last B.
  durations[3][IndexOf(programs[3], "3F4")] += 10;
  EXPECT_DOUBLE_EQ(Replay(programs, durations).value().step_time, 43);
  // The first rank has time to spare before the first gradient comes.
  durations = UnitDurations(programs);
  durations[0][IndexOf(programs[0], "0F3")] += 0.5;
  EXPECT_DOUBLE_EQ(Replay(programs, durations).value().step_time, 33);
}

TEST(Replay, MessagesAndMeetingsTakeWhatTheirEndsSay) {
  const std::vector<Program> programs = Programs("naive", 2, 1);
  Durations durations = UnitDurations(programs);
  durations[1][IndexOf(programs[1], "0RECV_F0")] = 5;
  durations[0][IndexOf(programs[0], "NORM_EXCHANGE")] = 0.25;
  durations[1][IndexOf(programs[1], "NORM_EXCHANGE")] = 0.75;
  // The next step begins on the first rank.
  const Replayed replayed = Replay(programs, durations).value();
  EXPECT_DOUBLE_EQ(replayed.step_time, 6 + 5 + 0.25);
  EXPECT_DOUBLE_EQ(replayed.spans[1][IndexOf(programs[1], "OPT")].start -
                       replayed.spans[0][IndexOf(programs[0], "OPT")].start,
                   0.5);
}

TEST(Replay, CopiesWaitForEachOtherInTheirSums) {
  const std::vector<Program> programs =
      SpreadOverCopies(Programs("1f1b", 2, 4, {.reduce_gradients = true}), 3);
  ASSERT_EQ(programs.size(), 6u);
  EXPECT_EQ(programs[5].pp_rank, PpRank(5));
  Durations durations = UnitDurations(programs);
  const double undisturbed = Replay(programs, durations).value().step_time;
  durations[4][IndexOf(programs[4], "1F0")] += 10;  // pp rank 1 of copy 1
  EXPECT_DOUBLE_EQ(Replay(programs, durations).value().step_time, undisturbed + 10);
  const auto spans = Replay(programs, durations).value().spans;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const std::size_t opt = IndexOf(programs[rank], "OPT");
    EXPECT_DOUBLE_EQ(spans[rank][opt].start, spans[0][IndexOf(programs[0], "OPT")].start);
  }
}

TEST(Replay, RefusesDurationsThatDoNotFit) {
  const std::vector<Program> programs = Programs("gpipe", 2, 2);
  EXPECT_FALSE(Replay(programs, {}).ok());
  Durations durations = UnitDurations(programs);
  durations[1][0] = -1;
  EXPECT_FALSE(Replay(programs, durations).ok());
}

}  // namespace
}  // namespace takt::sim
