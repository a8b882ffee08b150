// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
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
  explicit BoundInstruction(backend::Stream* stream = nullptr) : stream_(stream) {}
  virtual ~BoundInstruction() = default;

  // step: 1-based. It is a later one than the engine's where the instruction works ahead.
  // Errors end the program; the first one sticks.
  virtual absl::Status Run(StepId step) = 0;

  backend::Stream* stream() const { return stream_; }

 private:
  backend::Stream* const stream_;
};

}  // namespace takt::engine
