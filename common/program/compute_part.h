// SPDX-License-Identifier: Apache-2.0
// One F, I, W or B with its slots: a whole instruction, or one half of an overlapped pair.
#pragma once

#include <span>
#include <vector>

#include "common/program/program.h"

namespace takt::program {

// Borrows its slots from the instruction.
struct ComputePart {
  Op op = Op::kForward;
  StageId stage;
  MicrobatchId microbatch;
  std::span<const SlotId> reads, writes;
};

struct OverlapParts {
  ComputePart forward, backward;
};

// instruction: F, I, B, or W of one microbatch.
ComputePart WholePart(const Instruction& instruction);

// One part for each microbatch of a W, in ascending order, with the slots that it reads for that
// microbatch alone: no weights, no gradients. Empty: the microbatches have different numbers of
// slots, which does not happen in a checked program.
std::vector<ComputePart> MicrobatchParts(const Instruction& weight_grad, const Program& program);

// overlap: kOverlap of a checked program. Its slots are those of the F, then those of the B, each
// in the order of docs/programs.md.
OverlapParts PartsOf(const Instruction& overlap, const Program& program);

// "1F3".
std::string ToString(const ComputePart& part);

}  // namespace takt::program
