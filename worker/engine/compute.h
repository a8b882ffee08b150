// SPDX-License-Identifier: Apache-2.0
// What the engine asks of the layer above it (worker/train, the emulated model, a toy in tests):
// run one instruction, and say where the bytes of a slot are. The engine knows nothing of
// Transformers.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/program/program.h"
#include "worker/backend/stream.h"

namespace takt::engine {

class Compute {
 public:
  virtual ~Compute() = default;
  // Runs one instruction of any lane that is not SEND or RECV, to its end or onto StreamOf it.
  // step: 1-based.  Thread: the lane's own; different lanes call at the same time, only with
  // instructions whose slots do not conflict.  Errors end the program; the first one sticks.
  virtual absl::Status Run(const program::Instruction& instruction, StepId step) = 0;
  // The stream on which Run leaves the work of this instruction, to be done later; null: it is done
  // on return. The same answer for the life of the program; the stream is of the instruction's lane
  // alone.
  virtual backend::Stream* StreamOf(const program::Instruction&) { return nullptr; }
  // Memory of a slot that SEND reads or RECV writes; stable for the life of the program.
  virtual std::span<std::byte> SlotBytes(SlotId slot) = 0;
};

// Sums over the ranks of a group in rank order, so that the result has the same bits on every rank
// and in every run. Thread: one caller at a time per object.  Errors: as the transport's.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int size() const = 0;
  // In place. Deterministic: element i is ((x0 + x1) + x2) + ... by group rank. Floats are memory
  // of the device, if the group is of one; doubles the host's.
  virtual absl::Status AllReduceSum(StepId step, std::span<float> data) = 0;
  virtual absl::Status AllReduceSum(StepId step, std::span<double> data) = 0;
  // Where a sum of floats is left, to be done later; null: it is done on return.
  virtual backend::Stream* stream() { return nullptr; }
};

}  // namespace takt::engine
