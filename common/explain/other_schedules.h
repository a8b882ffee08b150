// SPDX-License-Identifier: Apache-2.0
// Whether another built-in family would run the same stages faster.
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

// The fastest family with a flush that puts every stage where `programs` have it and holds at most
// twice what they do. costs: by stage, with zeros for kinds that the programs do not run: I and W
// are then halves of B, B is I and W. None: nothing is faster, the stages are in nobody's places,
// or the programs are too large to try.
std::optional<OtherSchedule> FindBetterSchedule(const std::vector<program::Program>& programs,
                                                cost::Costs costs);

}  // namespace takt::explain
