// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/backend/stream.h"

namespace takt::engine {

// One instruction of a program with everything resolved that running it needs. An engine owns it.
// It borrows from whatever bound it, and from the program. Thread: one caller at a time. Bound
// instructions of different lanes run at the same time if their slots do not conflict.
class BoundInstruction {
 public:
  // stream: Run leaves its work there, to be done later, and only instructions of the same lane
  // share it; null: the work is done when Run returns.
  explicit BoundInstruction(backend::Stream* stream) : stream_(stream) {}
  virtual ~BoundInstruction() = default;

  // step: from 1. It is later than the engine's step if the instruction works ahead.
  virtual absl::Status Run(StepId step) = 0;

  backend::Stream* stream() const { return stream_; }

 private:
  backend::Stream* const stream_;
};

using Bound = absl::StatusOr<std::unique_ptr<BoundInstruction>>;

// run: absl::Status(StepId), whose captures are what was resolved.
template <typename Function>
std::unique_ptr<BoundInstruction> MakeBound(backend::Stream* stream, Function run) {
  class BoundRun final : public BoundInstruction {
   public:
    BoundRun(backend::Stream* stream, Function run)
        : BoundInstruction(stream), run_(std::move(run)) {}
    absl::Status Run(StepId step) override { return run_(step); }

   private:
    Function run_;
  };
  return std::make_unique<BoundRun>(stream, std::move(run));
}

// An instruction with nothing to do where it is bound.
inline std::unique_ptr<BoundInstruction> NothingToDo(backend::Stream* stream = nullptr) {
  return MakeBound(stream, [](StepId) { return absl::OkStatus(); });
}

}  // namespace takt::engine
