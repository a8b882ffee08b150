// SPDX-License-Identifier: Apache-2.0
// Chooses which running jobs are paused so that a job of higher priority gets its gang.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/placement/queue.h"

namespace takt::placement {

struct Victim {
  const Holder* holder = nullptr;  // borrowed
  int num_useful = 0;              // workers that the other job could use
  bool operator==(const Victim&) const = default;
};
using Victims = std::vector<Victim>;

// Returns the fewest candidates that suffice. Among equally many, those with the lowest priorities
// are chosen, then those that started last. Returns none if all together do not suffice.
// suffices: must be true for a set if it is true for a smaller set, or for one with fewer useful
// workers.
Victims ChooseVictims(Victims candidates, absl::FunctionRef<bool(const Victims&)> suffices);

}  // namespace takt::placement
