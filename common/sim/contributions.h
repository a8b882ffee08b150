// SPDX-License-Identifier: Apache-2.0
// Checks that the ranks together compute one step's loss and gradients, no more and no less.
#pragma once

#include <optional>
#include <vector>

#include "common/program/program.h"
#include "common/sim/refusal.h"

namespace takt::sim {

// The programs must have these sums; unset: those that any of them has.
struct ExpectedSums {
  std::optional<bool> gradients;        // REDUCE_GRAD
  std::optional<bool> tied_embeddings;  // REDUCE_TIED
};

// Every (stage, microbatch) is run forward exactly once, and backward exactly once if any rank
// holds gradients, over all ranks, where a stage may have two holders. So each gradient has its
// scale. Every held layer is summed over ranks once (always if it has two holders and an
// optimizer) and counted once in the norm. Each rank comes once to the exchange, and has as many
// updates as the others. If the vocabulary is spread, every rank has each of its instructions once
// a microbatch, and sums, counts and updates its rows once. programs: passed CheckProgram and
// CheckDataflow.
std::optional<Refusal> CheckContributions(const std::vector<program::Program>& programs,
                                          const ExpectedSums& expected);

}  // namespace takt::sim
