// SPDX-License-Identifier: Apache-2.0
// Makes steps that overlap: no rank waits for all others before it updates its weights
// (docs/adr/0012-step-without-a-barrier.md).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"

namespace takt::program {

// programs: of all ranks, as Lower makes them of a schedule with a flush.
//
// Returns a program for each rank. The prologue runs the first forwards of the first step, and each
// body runs what is left of a step and the first forwards of the next one. SPECULATE foresees the
// weights that these read, and OPT, at the end of the body, makes the true ones. If they differ,
// all ranks run the prologue again, with the true weights, before the next body.
//
// Of each rank those forwards run ahead that come before anything else is computed, as far as both
// ends of their messages do. So the prologue and a body each have as many sends as receives, in one
// order on both ends, and either may follow a body.
// Where the vocabulary is spread, the ROWS of these forwards run ahead on all ranks, and a
// SPECULATE of its own foresees the rows that they pass. A W reads no tokens, except in stage 0.
// Where replicas share the optimizer's state, each GATHER_WEIGHTS is there twice: between SPECULATE
// and NORM_EXCHANGE for the foreseen weights, and after OPT for the true ones. Errors:
// kInvalidArgument (a program that has no optimizer or no flush; two copies of the weights, weights
// that are freed, parts).
absl::StatusOr<std::vector<Program>> RemoveBarrier(const std::vector<Program>& programs);

// Returns whether the instruction is the SPECULATE of a rank's rows of the embedding.
bool ForeseesRows(const Instruction& instruction);

// Returns whether the instruction is a GATHER_WEIGHTS of foreseen weights.
bool GathersForeseen(const Instruction& instruction, const Program& program);

}  // namespace takt::program
