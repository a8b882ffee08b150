// SPDX-License-Identifier: Apache-2.0
// Chooses the way in which our planner would do the work of a published run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/published_cases.h"
#include "tests/bench/published_machine.h"

namespace takt::bench {

// Says how the devices of a run share its work.
struct Way {
  int data = 1, pipeline = 1, microbatch = 1;

  bool operator==(const Way&) const = default;
};

// Returns the ways that use all devices of the run, with at least a layer for each stage, and that
// divide its batch. Microbatches are the run's and powers of two up to 64.
std::vector<Way> WaysFor(const PublishedRun& run);

// Describes the plan that was chosen.
struct ChosenWay {
  std::string name;  // "dp8 pp16x2 mb2 zb-v", and what is computed again
  double seconds = 0;
};

// Takes the three ways whose 1f1b is fastest, of those that fit, and the run's own one. Plans each
// with schedule: auto, and again with the chunks of the run. Returns the fastest plan, or nullopt
// if nothing fits. Devices are groups of GPUs as large as the run's.
std::optional<ChosenWay> ChooseFor(const PublishedRun& run, const MachineModel& machine);

}  // namespace takt::bench
