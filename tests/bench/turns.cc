// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/turns.h"

#include <utility>

#include "common/base/status.h"

namespace takt::bench {
namespace {

class TurnTaker final : public engine::Compute {
 public:
  TurnTaker(engine::Compute& inner, const program::Program& program, Turns& turns,
            backend::Stream* stream, std::unique_ptr<backend::Event> end)
      : inner_(inner), program_(program), turns_(turns), stream_(stream), end_(std::move(end)) {}

  absl::Status Run(const program::Instruction& instruction, StepId step) override {
    const program::Lane& lane = program_.lanes[instruction.lane.value()];
    if (lane.kind != program::LaneKind::kCompute) return inner_.Run(instruction, step);
    const std::lock_guard turn(turns_.mutex);
    if (stream_ == nullptr) return inner_.Run(instruction, step);
    if (turns_.last != nullptr) RETURN_IF_ERROR(stream_->Await(*turns_.last));
    RETURN_IF_ERROR(inner_.Run(instruction, step));
    turns_.last = end_.get();
    return stream_->Record(*end_);
  }
  backend::Stream* StreamOf(const program::Instruction& instruction) override {
    return inner_.StreamOf(instruction);
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return inner_.SlotBytes(slot); }

 private:
  engine::Compute& inner_;
  const program::Program& program_;
  Turns& turns_;
  backend::Stream* const stream_;  // of the compute lane; null: work is done when it is run
  const std::unique_ptr<backend::Event> end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<engine::Compute>> TakeTurns(engine::Compute& inner,
                                                           const program::Program& program,
                                                           Turns& turns) {
  backend::Stream* stream = nullptr;
  for (const program::Instruction& instruction : program.body) {
    if (program::IsCompute(instruction.op)) stream = inner.StreamOf(instruction);
  }
  std::unique_ptr<backend::Event> end;
  if (stream != nullptr) {
    ASSIGN_OR_RETURN(end, stream->CreateEvent());
  }
  return std::make_unique<TurnTaker>(inner, program, turns, stream, std::move(end));
}

}  // namespace takt::bench
