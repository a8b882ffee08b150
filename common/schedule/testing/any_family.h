// SPDX-License-Identifier: Apache-2.0
// A random schedule of a random family, for property tests (rapidcheck).
#pragma once

#include "common/schedule/generate.h"

namespace takt::schedule {

// A uniform draw from [low, high). rapidcheck's own ranges stay near the lower end for most of a
// run.
int Uniform(int low, int high);

// Sizes up to 8 ranks, 16 microbatches and 4 chunks, costs if the family looks at them.
GenerateOptions AnyOptions(const Family& family);

// A family with a flush, at sizes that it serves.
Schedule AnyFamily();

// Returns whether the words of the vocabulary may be spread under a schedule: it flushes, has one
// copy of the weights, and runs its last stage in the order of microbatches.
bool MaySpread(const Schedule& schedule);

}  // namespace takt::schedule
