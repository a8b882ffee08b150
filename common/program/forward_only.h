// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "common/program/program.h"

namespace takt::program {

// Returns what remains of lowered programs when nothing is learned: LOAD, F (also that of an
// overlapped pair), their messages, and EVAL, which sums the loss over the ranks where
// NORM_EXCHANGE stood. One stash slot a stage serves all microbatches, because nothing reads it
// afterwards. Waits only disappear, so programs that complete still do. programs: they have a
// flush, so that no forward runs before its step.
std::vector<Program> ForwardOnly(const std::vector<Program>& programs);

}  // namespace takt::program
