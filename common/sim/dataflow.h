// SPDX-License-Identifier: Apache-2.0
// What every slot holds when it is read: follows the values of one step through one rank's program.
#pragma once

#include "absl/status/status.h"
#include "common/program/program.h"

namespace takt::sim {

// Each instruction finds in its slots what it is about (the activation of its microbatch from the
// stage before, its own stash, the gradient from the stage after); each stage of the rank runs
// every microbatch exactly once forward and backward; reductions, norm and optimizer see complete
// gradients. The list order may be followed, because lanes wait as it says. program: passed
// CheckProgram. kInvalidArgument: the first instruction that finds something else.
absl::Status CheckDataflow(const program::Program& program);

}  // namespace takt::sim
