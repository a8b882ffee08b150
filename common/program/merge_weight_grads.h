// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/program/program.h"

namespace takt::program {

// Merges W of one stage that follow each other on the compute lane, if their microbatches follow
// each other too. The merged W stands where the first of them stood, because what the others need
// was there for their I, which came before. It gives back all its slots at its end.
// Returns whether there were any.
bool MergeWeightGrads(Program& program);

}  // namespace takt::program
