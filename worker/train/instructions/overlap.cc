// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {
namespace {

// Runs a layer of F, then a layer of B, in turns. Neither uses what the other changes. They share
// only weights, which both read, and scratch, which holds nothing between two layers.
absl::Status TakeTurns(const BoundPart& f, const BoundPart& b, const PartArguments& arguments) {
  const std::size_t f_layers = f.stage.num_layers(), b_layers = b.stage.num_layers();
  for (std::size_t turn = 0; turn < std::max(f_layers, b_layers); ++turn) {
    if (turn < f_layers) RETURN_IF_ERROR(f.stage.ForwardLayer(f.buffers, arguments.loss, turn));
    if (turn < b_layers) {
      RETURN_IF_ERROR(b.stage.BackwardLayer(b.buffers, arguments.accumulate, b_layers - 1 - turn));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// O: an F and a B of two microbatches, layer by layer in turns.
Bound BindOverlap(ProgramState& state, const program::Instruction& instruction) {
  const program::OverlapParts parts = program::PartsOf(instruction, state.program);
  ASSIGN_OR_RETURN(const BoundPart f, ResolvePart(state, parts.forward, parts.forward.reads));
  ASSIGN_OR_RETURN(const BoundPart b, ResolvePart(state, parts.backward, parts.backward.reads));
  if (f.version != b.version) {
    return absl::InvalidArgumentError("its two halves read weights of different versions");
  }
  return BindPart(
      state, f.version,
      {.op = instruction.op,
       .forward_stage = parts.forward.stage,
       .backward_stage = parts.backward.stage,
       .forward = f.buffers,
       .backward = b.buffers},
      [f, b](StepId step) {
        return PartArguments{.loss = f.loss.Call(step), .accumulate = b.Accumulates()};
      },
      [f, b](const PartArguments& arguments) { return TakeTurns(f, b, arguments); });
}

}  // namespace takt::train
