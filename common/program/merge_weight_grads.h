// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/program/program.h"

namespace takt::program {

// Makes one W of those of one stage that follow each other on the compute lane and are of
// microbatches that follow each other, where the first of them stands: what the others need was
// there for their I, which came before. They give back their slots together. False: there are none.
bool MergeWeightGrads(Program& program);

}  // namespace takt::program
