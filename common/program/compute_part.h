// SPDX-License-Identifier: Apache-2.0
// One F, I, W or B with its slots: a whole instruction, or one of the two that an overlapped pair
// consists of.
#pragma once

#include <span>

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

// instruction: F, I, W or B.
ComputePart WholePart(const Instruction& instruction);

// overlap: kOverlap of a checked program. Its slots are the F's, then the B's, each in the order of
// docs/programs.md.
OverlapParts PartsOf(const Instruction& overlap, const Program& program);

// "1F3".
std::string ToString(const ComputePart& part);

}  // namespace takt::program
