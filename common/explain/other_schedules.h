// SPDX-License-Identifier: Apache-2.0
// Finds another built-in family that would run the same stages faster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/cost/costs.h"
#include "common/program/program.h"

namespace takt::explain {

struct OtherSchedule {
  std::string name;
  double saved_seconds = 0;  // of the simulated step of `programs`
  int peak_in_flight = 0, current_peak_in_flight = 0;
};

// Returns the fastest family with a flush that puts every stage where `programs` have it and holds
// at most twice as much. costs: by stage, with zeros for kinds that the programs do not run; then I
// and W are halves of B, and B is I and W. None: no family is faster, none has this placement,
// halves of pairs hide meetings, or the programs are too large to try.
std::optional<OtherSchedule> FindBetterSchedule(const std::vector<program::Program>& programs,
                                                cost::Costs costs);

}  // namespace takt::explain
