// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "coordinator/store/record.h"
#include "coordinator/tracking/tracker.h"

namespace takt::tracking {

// Returns the job as a tracking server shows it, or nullopt if its file names no experiment.
std::optional<TrackedJob> ToTrackedJob(const store::JobRecord& job);

}  // namespace takt::tracking
