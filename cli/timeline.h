// SPDX-License-Identifier: Apache-2.0
// A schedule laid out in time by the simulator, and its pictures.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/schedule.h"
#include "common/sim/simulate.h"

namespace takt::cli {

struct TimelineCell {
  schedule::Action action;
  double start = 0, end = 0;
};

struct Timeline {
  std::string name;
  sim::Report report;
  std::vector<std::vector<TimelineCell>> ranks;  // by pp rank, in order of time
};

// Validates, lowers (compute and messages only, no optimizer), proves and simulates.
// kInvalidArgument: the rule broken.
absl::StatusOr<Timeline> MakeTimeline(const schedule::Schedule& schedule, const sim::Costs& costs);

// A row of text for each rank; a column is as long as the shortest action, longer ones are drawn
// out with dashes.
std::string FormatGrid(const Timeline& timeline);
// A picture that stands alone.
std::string FormatSvg(const Timeline& timeline);

}  // namespace takt::cli
