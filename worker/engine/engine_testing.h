// SPDX-License-Identifier: Apache-2.0
// Fake instructions for tests of the engine: values in slots instead of tensors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "worker/engine/engine.h"

namespace takt::engine {

// Every instruction replaces the slots it writes by a mixture of its step, its microbatch and the
// slots it touches: any other order of two instructions that share a slot shows in the values.
class FakeCompute : public Compute {
 public:
  explicit FakeCompute(std::size_t num_slots) : slots(num_slots) {}

  Bound Bind(const program::Instruction& instruction) override {
    return MakeBound(nullptr, [this, &instruction](StepId step) { return Run(instruction, step); });
  }
  absl::Status Run(const program::Instruction& instruction, StepId step) {
    if (before) {
      if (absl::Status status = before(instruction, step); !status.ok()) return status;
    }
    Mix(instruction, step);
    return absl::OkStatus();
  }
  std::span<std::byte> SlotBytes(SlotId slot) override {
    return std::as_writable_bytes(std::span(&slots[slot.value()], 1));
  }

  void Mix(const program::Instruction& instruction, StepId step) {
    std::uint64_t value = step.value() * 1'000'003 + instruction.microbatch.value();
    const auto mix = [&](SlotId slot) {
      value = (value ^ slots[slot.value()]) * 0x9E3779B97F4A7C15u + 1;
    };
    for (const SlotId slot : instruction.reads) mix(slot);
    for (const SlotId slot : instruction.writes) mix(slot);
    for (const SlotId slot : instruction.writes) slots[slot.value()] = value;
  }

  std::vector<std::uint64_t> slots;
  std::function<absl::Status(const program::Instruction&, StepId)> before;
};

inline program::Program RandomProgram(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  program::Program program;
  program.slots.resize(1 + below(8));
  program.lanes.resize(1 + below(5));  // compute lanes: any instruction may be on any of them
  const int length = 1 + below(30);
  for (int i = 0; i < length; ++i) {
    program::Instruction instruction{.op = program::Op::kForward,
                                     .lane = LaneId(below(static_cast<int>(program.lanes.size()))),
                                     .stage = StageId(0),
                                     .microbatch = MicrobatchId(i)};
    for (auto* slots : {&instruction.reads, &instruction.writes}) {
      for (int n = below(3); n > 0; --n)
        slots->push_back(SlotId(below(static_cast<int>(program.slots.size()))));
    }
    program.body.push_back(std::move(instruction));
  }
  return program;
}

inline std::unique_ptr<Engine> MakeEngine(const program::Program& program, Compute& compute,
                                          EngineOptions options = {}) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(program, compute, std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

}  // namespace takt::engine
