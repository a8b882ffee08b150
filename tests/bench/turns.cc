// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/turns.h"

#include <utility>

#include "common/base/status.h"

namespace takt::bench {
namespace {

class TurnTaker final : public engine::Compute {
 public:
  TurnTaker(engine::Compute& inner, const program::Program& program, Turns& turns)
      : inner_(inner), program_(program), turns_(turns) {}

  engine::Bound Bind(const program::Instruction& instruction) override {
    ASSIGN_OR_RETURN(std::unique_ptr<engine::BoundInstruction> bound, inner_.Bind(instruction));
    const program::Lane& lane = program_.lanes[instruction.lane.value()];
    if (lane.kind != program::LaneKind::kCompute) return bound;
    backend::Stream* const stream = bound->stream();
    // All instructions of the lane are on one stream.
    if (end_ == nullptr && stream != nullptr) {
      ASSIGN_OR_RETURN(end_, stream->CreateEvent());
    }
    return engine::MakeBound(
        stream, [this, stream, its_turn = std::move(bound)](StepId step) -> absl::Status {
          const std::lock_guard turn(turns_.mutex);
          if (stream == nullptr) return its_turn->Run(step);
          if (turns_.last != nullptr) RETURN_IF_ERROR(stream->Await(*turns_.last));
          RETURN_IF_ERROR(its_turn->Run(step));
          turns_.last = end_.get();
          return stream->Record(*end_);
        });
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return inner_.SlotBytes(slot); }

 private:
  engine::Compute& inner_;
  const program::Program& program_;
  Turns& turns_;
  std::unique_ptr<backend::Event> end_;  // the end of the newest turn; null: there is no stream
};

}  // namespace

std::unique_ptr<engine::Compute> TakeTurns(engine::Compute& inner, const program::Program& program,
                                           Turns& turns) {
  return std::make_unique<TurnTaker>(inner, program, turns);
}

}  // namespace takt::bench
