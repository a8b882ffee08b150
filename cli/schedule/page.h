// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

// Makes one HTML page that requests nothing: the schedule, and controls that show every family over
// a range of sizes and costs (atlas.h). Its markup and script are in page.html.
absl::StatusOr<std::string> RenderPage(const schedule::Schedule& schedule,
                                       const SimulatedSchedule& simulated);

}  // namespace takt::cli
