// SPDX-License-Identifier: Apache-2.0
// What every slot holds when it is read, where steps run into each other.
#pragma once

#include <optional>

#include "common/program/program.h"
#include "common/sim/refusal.h"

namespace takt::sim {

// As CheckDataflow, through the prologue and two bodies of a program without a flush: each
// instruction finds what it is about, of the right step; B meets the weights that its F met; OPT
// sees the gradients that it is to apply, and moves every version. The second body leaves what the
// first did, one step later: so it holds for any number of steps. program: passed CheckProgram.
std::optional<Refusal> CheckRunningDataflow(const program::Program& program);

}  // namespace takt::sim
