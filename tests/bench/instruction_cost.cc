// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/instruction_cost.h"

#include <algorithm>
#include <vector>

#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/transport/wake_word.h"

namespace takt::bench {

namespace {

class NoCompute final : public engine::Compute {
 public:
  engine::Bound Bind(const program::Instruction&) override { return engine::NothingToDo(); }
  std::span<std::byte> SlotBytes(SlotId) override { return {}; }
};

// Makes a program of `length` instructions that take turns on `num_lanes` lanes. Each reads what
// the one before it wrote.
program::Program Chain(int num_lanes, int length) {
  program::Program program;
  program.slots.resize(1);
  program.lanes.resize(num_lanes);
  for (int i = 0; i < length; ++i) {
    program.body.push_back({.op = program::Op::kForward,
                            .lane = LaneId(i % num_lanes),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(i),
                            .reads = {SlotId(0)},
                            .writes = {SlotId(0)}});
  }
  return program;
}

// Returns the median over steps.
double NanosPerInstruction(const program::Program& program) {
  constexpr int kSteps = 101;
  NoCompute compute;
  const auto engine = engine::Engine::Create(program, compute, {}).value();
  std::vector<double> nanos;
  const absl::Status status =
      engine->Run(StepId(1), StepId(kSteps), [&](const engine::StepTiming& timing) {
        nanos.push_back(static_cast<double>(timing.end_nanos - timing.start_nanos) /
                        static_cast<double>(program.body.size()));
      });
  if (!status.ok()) return -1;
  std::nth_element(nanos.begin(), nanos.begin() + kSteps / 2, nanos.end());
  return nanos[kSteps / 2];
}

}  // namespace

InstructionCost MeasureInstructionCost() {
  return {.instruction_nanoseconds = NanosPerInstruction(Chain(1, 1000)),
          .handoff_nanoseconds = NanosPerInstruction(Chain(2, 1000))};
}

}  // namespace takt::bench
