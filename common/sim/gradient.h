// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "common/program/program.h"

namespace takt::sim {

// The accumulated gradient of one layer. W and B make it, REDUCE_GRAD and REDUCE_TIED sum it where
// the list has them, then norm and optimizer read it.
struct Gradient {
  int expected = 0;  // how many W and B the rank runs on its stage before each OPT
  int accumulated = 0;
  bool needs_reduction = false, is_reduced = false;
  bool needs_tying = false, is_tied = false;

  // Returns what `op`, which reads it, should have waited for; "" if nothing.
  std::string_view LacksFor(program::Op op) const {
    using program::Op;
    if (accumulated < expected) return "is complete";
    if (op == Op::kReduceGrad) return "";
    if (needs_reduction && !is_reduced) return "is summed over ranks";
    if (op == Op::kReduceTied) return "";
    return needs_tying && !is_tied ? "has both uses of the embedding" : "";
  }
};

}  // namespace takt::sim
