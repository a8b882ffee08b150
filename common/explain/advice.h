// SPDX-License-Identifier: Apache-2.0
// Suggests what would make a measured step shorter, and tries each suggestion on the simulator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trace/timeline.h"

namespace takt::explain {

struct Advice {
  enum class Kind : std::uint8_t {
    kMoveLayer = 1,  // a layer moves from the stage that takes longest to another
    kSlowRank = 2,   // the slowest rank gets the speed of the others
    kLink = 3,       // the slowest link gets the speed of the others
    kData = 4,       // tokens are always there
    kSchedule = 5,   // another family runs the same stages
    kReplan = 6,     // the job gets the plan that measured times give now
  };
  Kind kind = Kind::kMoveLayer;
  std::string text;
  double saved_seconds = 0;   // of a step
  double saved_fraction = 0;  // of the measured step
};

// Returns "move_layer", "slow_rank", "link", "data", "schedule" or "replan".
std::string_view Name(Advice::Kind kind);

struct AdviceOptions {
  double least_fraction = 0.01;  // suggestions that save less are left out
};

// Returns the best suggestion of each kind but kReplan, which needs a planner; the one that saves
// most comes first. A layer that moves takes the time that its new stage takes for as much work
// (JobTrace::layer_work; empty: all layers are alike). Errors: kNotFound: the timeline has no such
// step.
absl::StatusOr<std::vector<Advice>> Advise(const trace::Timeline& timeline, StepId step,
                                           const AdviceOptions& options = {});

}  // namespace takt::explain
