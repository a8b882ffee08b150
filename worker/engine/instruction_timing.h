// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace takt::engine {

// Says when one instruction of one step, or one meeting inside it, ran, in nanoseconds of the
// steady clock.
struct InstructionTiming {
  std::int64_t start_nanos = 0, end_nanos = 0;
};

}  // namespace takt::engine
