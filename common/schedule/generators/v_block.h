// SPDX-License-Identifier: Apache-2.0
// The template of the families made from a building block (Qi et al. 2024, sec. 3 and appendix):
// the slots of one microbatch repeat every 6 slots, which 2 F, 2 I and 2 W of unit length fill. How
// long a chunk lives in the block decides the memory. The two chunks of a rank complement each
// other, so all ranks hold the same.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// Returns the slot of each pass of microbatch 0 on `rank` (v_row.h explains the passes). They are
// distinct mod 6.
struct VBlock {
  std::function<int(int rank)> fd, fu, id, iu;
};

// Repeats the block, and then moves the actions of the fill and the drain closer together, within
// the memory of the repeated block. Errors: kInvalidArgument (FieldError): sizes beyond
// kMaxActions.
absl::StatusOr<Schedule> BuildVBlock(const Family& family, const GenerateOptions& options,
                                     const VBlock& block);

}  // namespace takt::schedule
