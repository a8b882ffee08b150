// SPDX-License-Identifier: Apache-2.0
// Simulates programs as engines run them, with the halves of overlapped pairs apart where engines
// run one after the other.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/program/program.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// Does as Simulate, but a pair whose halves do not run side by side is its F and then its B, which
// take as long as outside of pairs. Each half waits for its own input, and its SEND for this half
// alone. In the report a pair is one event, which ends with the B and lasts as long as both halves;
// a critical path may have both halves. Where ranks meet inside pairs and `costs.halves_run_beside`
// is set, pairs stay whole. Errors: those of Simulate.
absl::StatusOr<Report> SimulateExecuted(const std::vector<program::Program>& programs,
                                        const cost::Costs& costs,
                                        const SimulateOptions& options = {});

}  // namespace takt::sim
