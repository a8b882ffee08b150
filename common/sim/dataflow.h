// SPDX-License-Identifier: Apache-2.0
// What every slot holds when it is read: follows the values of one step through one rank's program.
#pragma once

#include <optional>

#include "common/program/program.h"
#include "common/sim/refusal.h"

namespace takt::sim {

// Each instruction finds in its slots what it is about (the activation of its microbatch from the
// stage before, its own stash, the gradient from the stage after), and touches the weights and
// gradients of all layers of its stage; reductions, norm and optimizer see complete gradients, and
// come in this order. The list order may be followed, because lanes wait as it says. program:
// passed CheckProgram. Refuses the first instruction that finds something else.
std::optional<Refusal> CheckDataflow(const program::Program& program);

}  // namespace takt::sim
