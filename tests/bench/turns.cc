// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/turns.h"

#include <utility>

#include "common/base/status.h"

namespace takt::bench {
namespace {

// An instruction of the compute lane, run in its turn.
class Turn final : public engine::BoundInstruction {
 public:
  Turn(std::unique_ptr<engine::BoundInstruction> bound, Turns& turns, backend::Event* end)
      : BoundInstruction(bound->stream()), bound_(std::move(bound)), turns_(turns), end_(end) {}

  absl::Status Run(StepId step) override {
    const std::lock_guard turn(turns_.mutex);
    if (stream() == nullptr) return bound_->Run(step);
    if (turns_.last != nullptr) RETURN_IF_ERROR(stream()->Await(*turns_.last));
    RETURN_IF_ERROR(bound_->Run(step));
    turns_.last = end_;
    return stream()->Record(*end_);
  }

 private:
  const std::unique_ptr<engine::BoundInstruction> bound_;
  Turns& turns_;
  backend::Event* const end_;  // of the stream's newest turn; null: there is no stream
};

class TurnTaker final : public engine::Compute {
 public:
  TurnTaker(engine::Compute& inner, const program::Program& program, Turns& turns)
      : inner_(inner), program_(program), turns_(turns) {}

  absl::StatusOr<std::unique_ptr<engine::BoundInstruction>> Bind(
      const program::Instruction& instruction) override {
    ASSIGN_OR_RETURN(auto bound, inner_.Bind(instruction));
    const program::Lane& lane = program_.lanes[instruction.lane.value()];
    if (lane.kind != program::LaneKind::kCompute) return bound;
    // All of the lane are on one stream.
    if (end_ == nullptr && bound->stream() != nullptr) {
      ASSIGN_OR_RETURN(end_, bound->stream()->CreateEvent());
    }
    return std::make_unique<Turn>(std::move(bound), turns_, end_.get());
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return inner_.SlotBytes(slot); }

 private:
  engine::Compute& inner_;
  const program::Program& program_;
  Turns& turns_;
  std::unique_ptr<backend::Event> end_;
};

}  // namespace

std::unique_ptr<engine::Compute> TakeTurns(engine::Compute& inner, const program::Program& program,
                                           Turns& turns) {
  return std::make_unique<TurnTaker>(inner, program, turns);
}

}  // namespace takt::bench
