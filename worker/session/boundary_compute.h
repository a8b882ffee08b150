// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/program/program.h"
#include "worker/engine/compute.h"
#include "worker/train/halt_request.h"
#include "worker/train/trainer.h"

namespace takt::session {

// Wraps the trainer. Before each NORM_EXCHANGE it calls `before`. If the exchange says that ranks
// were asked to halt, the next step is the last. All ranks learn it in the same step, and with it
// whether they end in memory alone.
class BoundaryCompute final : public engine::Compute {
 public:
  BoundaryCompute(train::Trainer& trainer, std::function<void(StepId)> before,
                  std::function<void(StepId, train::HaltRequest)> end_after)
      : trainer_(trainer), before_(std::move(before)), end_after_(std::move(end_after)) {}

  engine::Bound Bind(const program::Instruction& instruction) override {
    ASSIGN_OR_RETURN(auto bound, trainer_.Bind(instruction));
    if (instruction.op != program::Op::kNormExchange) return bound;
    backend::Stream* const stream = bound->stream();
    return engine::MakeBound(stream,
                             [this, exchange = std::move(bound)](StepId step) -> absl::Status {
                               before_(step);
                               RETURN_IF_ERROR(exchange->Run(step));
                               const train::HaltRequest halt = trainer_.result(step).halt;
                               if (halt != train::HaltRequest::kNone)
                                 end_after_(StepId(step.value() + 1), halt);
                               return absl::OkStatus();
                             });
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return trainer_.SlotBytes(slot); }
  engine::PartCursor* part_cursor() override { return trainer_.part_cursor(); }
  engine::Beside beside() override { return trainer_.beside(); }
  engine::Bound BindBeside(const program::Instruction& backward) override {
    return trainer_.BindBeside(backward);
  }
  bool HoldsIn(StepId step) override { return trainer_.HoldsIn(step); }
  bool ForesawWrongly(StepId step) override { return trainer_.ForesawWrongly(step); }

 private:
  train::Trainer& trainer_;
  const std::function<void(StepId)> before_;
  const std::function<void(StepId, train::HaltRequest)> end_after_;
};

}  // namespace takt::session
