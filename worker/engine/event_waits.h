// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "common/program/program.h"

namespace takt::engine {

// The number of an instruction that is on no stream: it is done when its lane goes on.
inline constexpr int kHost = -1;

// Returns, for each instruction of the body, which others must be done before it begins. A lane
// gives an instruction to its stream once those that it depends on (program::Dependencies) were
// given to theirs; the stream, or the host if the instruction has none, then waits for the ones
// returned. Left out are those of its own stream, which keeps the order, and those that another
// wait implies, of this instruction or of an earlier one.
//
// stream_of: the number of the stream of each instruction of the body, or kHost. A lane may have
// instructions on a stream and on the host; they too come one after the other.
// Positions are those of program::Wait: negative ones are of the iteration before.
std::vector<std::vector<program::Wait>> EventWaits(const program::Program& program,
                                                   std::span<const int> stream_of);

}  // namespace takt::engine
