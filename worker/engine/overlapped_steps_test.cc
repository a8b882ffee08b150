// SPDX-License-Identifier: Apache-2.0
// Tests how the engine runs steps that overlap: what ran ahead runs again where weights were
// foreseen wrongly, and a step that holds waits for its norm.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/engine_testing.h"

namespace takt::engine {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

// The slots have weights, foreseen weights, scalars of the rank and of all ranks, and an
// activation.
constexpr SlotId kWeights(0), kForeseenWeights(1), kSums(2), kMet(3), kActivation(4);

Program OverlappedProgram() {
  Program program;
  program.slots.resize(5);
  program.lanes = {{.kind = program::LaneKind::kCompute}, {.kind = program::LaneKind::kReduce}};
  const auto made = [](Op op, int lane, std::vector<SlotId> reads, std::vector<SlotId> writes) {
    Instruction instruction;
    instruction.op = op;
    instruction.lane = LaneId(lane);
    instruction.reads = std::move(reads);
    instruction.writes = std::move(writes);
    return instruction;
  };
  const auto forward = [&](SlotId weights) {
    Instruction made_forward = made(Op::kForward, 0, {weights}, {kActivation});
    made_forward.stage = StageId(0);
    made_forward.microbatch = MicrobatchId(0);
    return made_forward;
  };
  program.prologue = {forward(kWeights)};
  Instruction backward = made(Op::kBackward, 0, {kActivation, kWeights}, {kSums});
  backward.stage = StageId(0);
  backward.microbatch = MicrobatchId(0);
  Instruction ahead = forward(kForeseenWeights);
  ahead.step_ahead = 1;
  program.body = {backward,
                  made(Op::kNormPartial, 0, {kSums}, {kSums, kMet}),
                  made(Op::kSpeculate, 0, {kSums, kWeights}, {kForeseenWeights}),
                  made(Op::kNormExchange, 1, {kMet}, {kMet}),
                  ahead,
                  made(Op::kOptimizer, 0, {kSums, kMet}, {kWeights})};
  return program;
}

class OverlappedCompute final : public FakeCompute {
 public:
  explicit OverlappedCompute(const Program& program) : FakeCompute(program.slots.size()) {
    before = [this](const Instruction& instruction, StepId step) {
      const std::lock_guard lock(mutex_);
      ran_.push_back(absl::StrCat(std::string(program::Name(instruction.op)), "@", step.value()));
      return absl::OkStatus();
    };
  }

  bool HoldsIn(StepId step) override { return held.contains(step.value()); }
  bool ForesawWrongly(StepId step) override { return wrong.contains(step.value()); }
  std::vector<std::string> ran() {
    const std::lock_guard lock(mutex_);
    return ran_;
  }

  std::set<std::int64_t> held, wrong;  // steps

 private:
  std::mutex mutex_;
  std::vector<std::string> ran_;  // guarded by mutex_
};

TEST(OverlappedEngine, RunsThePrologueAgainAfterEachStepThatWasForeseenWrongly) {
  constexpr std::int64_t kSteps = 40;
  const Program program = OverlappedProgram();
  for (int seed = 0; seed < 20; ++seed) {
    OverlappedCompute expected(program), actual(program);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      if ((step * 7 + seed) % 5 < seed % 3) actual.wrong.insert(step);
    }
    const auto mix = [&](const std::vector<Instruction>& list, std::int64_t step) {
      for (const Instruction& each : list) expected.Mix(each, StepId(step + each.step_ahead));
    };
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const bool begins = step == 1 || step == 31;
      if (begins || actual.wrong.contains(step - 1)) mix(program.prologue, step);
      mix(program.body, step);
    }
    const auto engine = MakeEngine(program, actual);
    std::int64_t reported = 0, previous_end = 0;
    const auto on_step = [&](const StepTiming& timing) {
      EXPECT_EQ(timing.step.value(), ++reported);
      const bool begins = timing.step == StepId(1) || timing.step == StepId(31);
      EXPECT_EQ(timing.redone, !begins && actual.wrong.contains(timing.step.value() - 1));
      EXPECT_EQ(timing.prologue != nullptr, begins || timing.redone);
      if (!begins) {
        EXPECT_EQ(timing.start_nanos, previous_end);
      }
      previous_end = timing.end_nanos;
    };
    ASSERT_EQ(engine->Run(StepId(1), StepId(30), on_step), absl::OkStatus());
    ASSERT_EQ(engine->Run(StepId(31), StepId(kSteps), on_step), absl::OkStatus());
    EXPECT_EQ(reported, kSteps);
    EXPECT_EQ(actual.slots, expected.slots) << "seed " << seed;
  }
}

TEST(OverlappedEngine, ForeseesAfterTheNormInStepsThatHold) {
  const Program program = OverlappedProgram();
  OverlappedCompute compute(program);
  for (std::int64_t step = 1; step <= 50; ++step) compute.held.insert(step);
  const auto engine = MakeEngine(program, compute);
  ASSERT_EQ(engine->Run(StepId(1), StepId(50), nullptr), absl::OkStatus());
  const std::vector<std::string> ran = compute.ran();
  for (std::int64_t step = 1; step <= 50; ++step) {
    const auto norm = std::ranges::find(ran, absl::StrCat("NORM_EXCHANGE@", step));
    ASSERT_NE(norm, ran.end());
    EXPECT_NE(std::find(norm, ran.end(), absl::StrCat("SPECULATE@", step)), ran.end()) << step;
  }
}

// The end may come in the step after which what ran ahead would run again.
TEST(OverlappedEngine, EndsAfterAStepThatWasForeseenWrongly) {
  const Program program = OverlappedProgram();
  OverlappedCompute compute(program);
  for (std::int64_t step = 1; step <= 9; ++step) compute.wrong.insert(step);
  std::unique_ptr<Engine> engine;
  const auto record = compute.before;
  compute.before = [&](const Instruction& instruction, StepId step) {
    if (instruction.op == Op::kNormExchange && step == StepId(4)) engine->EndAfter(StepId(5));
    return record(instruction, step);
  };
  engine = MakeEngine(program, compute);
  StepId reported;
  ASSERT_EQ(
      engine->Run(StepId(1), StepId(9), [&](const StepTiming& timing) { reported = timing.step; }),
      absl::OkStatus());
  EXPECT_EQ(reported, StepId(5));
}

TEST(OverlappedEngine, FailsWhileLanesWaitForTheNorm) {
  const Program program = OverlappedProgram();
  OverlappedCompute compute(program);
  compute.held = {1, 2, 3};
  compute.before = [](const Instruction& instruction, StepId step) {
    const bool fails = instruction.op == Op::kNormExchange && step == StepId(3);
    return fails ? absl::UnavailableError("a peer left") : absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  const absl::Status status = engine->Run(StepId(1), StepId(9), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace takt::engine
