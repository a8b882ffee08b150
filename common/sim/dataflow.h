// SPDX-License-Identifier: Apache-2.0
// Checks what every slot holds when it is read: follows the values through one rank's program.
#pragma once

#include <optional>

#include "common/program/program.h"
#include "common/sim/refusal.h"

namespace takt::sim {

// Each instruction finds in its slots what it is about, of the right step: the activation of its
// microbatch from the stage before, its own stash, the gradient from the stage after. It touches
// the weights and gradients of all layers of its stage, and a backward meets the weights that its F
// met. Reductions, norm and optimizer see complete gradients and come in this order, and the
// optimizer moves every version of the weights.
//
// The list order may be followed, because lanes wait as it says. A program with a flush begins
// every step with nothing from the one before it, so its body is followed once. Another program is
// followed through its prologue and two bodies. The second body must leave what the first one did,
// one step later, so the proof holds for any number of steps.
//
// program: passed CheckProgram. Refuses the first instruction that finds something else.
std::optional<Refusal> CheckDataflow(const program::Program& program);

}  // namespace takt::sim
