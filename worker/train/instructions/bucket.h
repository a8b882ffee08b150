// SPDX-License-Identifier: Apache-2.0
// Finds the layer that REDUCE_GRAD and GATHER_WEIGHTS are of.
#pragma once

#include "common/program/program.h"
#include "worker/train/program_state.h"

namespace takt::train {

// Returns the layer of the instruction, or null if it is not here. Of rows, the instruction names
// the use: 0 the embedding's, 1 the head's.
const LayerParameters* BucketOf(const ProgramState& state, const program::Instruction& instruction);

}  // namespace takt::train
