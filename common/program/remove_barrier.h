// SPDX-License-Identifier: Apache-2.0
// Makes steps that overlap: no rank waits for all others before it updates its weights
// (docs/adr/0012-step-without-a-barrier.md).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"

namespace takt::program {

// Both have a program for each rank, with the same slots and lanes.
struct OverlappedSteps {
  // The prologue runs the first forwards of the first step, and each body runs what is left of a
  // step and the first forwards of the next one. SPECULATE foresees the weights that these read,
  // and OPT, at the end of the body, makes the true ones.
  std::vector<Program> steps;
  // The body runs the forwards of the next step again, with the true weights. All ranks run it
  // after a step whose update was foreseen wrongly.
  std::vector<Program> repairs;
};

// programs: of all ranks, as Lower makes them of a schedule with a flush.
//
// Of each rank those forwards run ahead that come before its first backward, as far as both ends of
// their messages do. So the prologue, a body and a repair each have as many sends as receives, in
// one order on both ends, whatever part follows whatever other one.
// Errors: kInvalidArgument (a program that has no optimizer or no flush; two copies of the weights,
// a spread vocabulary, shards of the optimizer's state, parts).
absl::StatusOr<OverlappedSteps> RemoveBarrier(const std::vector<Program>& programs);

}  // namespace takt::program
