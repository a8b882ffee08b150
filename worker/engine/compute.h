// SPDX-License-Identifier: Apache-2.0
// The engine asks this of the layer above it (worker/train, or a fake in tests). The engine does
// not know what a Transformer is.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/program/program.h"
#include "worker/backend/stream.h"
#include "worker/engine/bound_instruction.h"
#include "worker/engine/pair_turns.h"
#include "worker/engine/part_cursor.h"

namespace takt::engine {

// What the two halves of an O share if they run side by side. Both objects are borrowed.
struct Beside {
  PairTurns* turns = nullptr;    // null: they run one after the other
  PartCursor* cursor = nullptr;  // follows the parts of the B
};

// Binds the instructions of one program. The engine calls it when it is created, and never while
// the program runs.
class Compute {
 public:
  virtual ~Compute() = default;
  // instruction: any but SEND and RECV; the caller keeps it for the life of what is returned.
  // Errors: kInvalidArgument (the program does not agree with what computes it), which names the
  // instruction; kInternal (no such op).
  virtual Bound Bind(const program::Instruction& instruction) = 0;
  // The memory of a slot that SEND reads or RECV writes. It stays there for the life of the
  // program.
  virtual std::span<std::byte> SlotBytes(SlotId slot) = 0;
  // Returns what follows the parts of its instructions, for the life of this object. Null: it runs
  // no program whose instructions have parts.
  virtual PartCursor* part_cursor() { return nullptr; }

  // Returns what the halves of an O share. An engine runs an O as its F and its B
  // (program::SplitPairs). If `turns` is set, the B runs on a thread of its own and is bound by
  // BindBeside, neither half has a stream, and each takes turns to use what they share. The objects
  // live as long as this one.
  virtual Beside beside() { return {}; }
  // As Bind.  Precondition: beside().turns is set.
  virtual Bound BindBeside(const program::Instruction& backward) { return Bind(backward); }

  // The engine asks these where steps overlap (program::OverlapsSteps). The answers are equal on
  // all ranks.
  // Before each SPECULATE, on its lane: whether it waits for the step's NORM_EXCHANGE.
  virtual bool HoldsIn(StepId /*step*/) { return false; }
  // After NORM_EXCHANGE, on its lane: whether SPECULATE makes other weights than OPT. Then what ran
  // ahead of the next step runs again.
  virtual bool ForesawWrongly(StepId /*step*/) { return false; }
};

}  // namespace takt::engine
