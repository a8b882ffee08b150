// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "common/program/program.h"

namespace takt::engine {

// Not on a stream: done when its lane goes on.
inline constexpr int kHost = -1;

// A lane gives an instruction to its stream once those that it depends on (program::Dependencies)
// were given to theirs. Which of them must be done before it begins, by instruction of the body:
// the stream waits for those (the host, if the instruction is its own). None of its own stream,
// which keeps the order; none that is implied by others, or by what was waited for before.
//
// stream_of: by instruction of the body, the number of its stream, or kHost. A lane may have
// instructions on a stream and on the host; they too come one after the other.
// Positions as in program::Wait: negative ones are of the iteration before.
std::vector<std::vector<program::Wait>> EventWaits(const program::Program& program,
                                                   std::span<const int> stream_of);

}  // namespace takt::engine
