// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace takt::cli {

// One picture has at most so many boxes, so that a page of five stays below 10 MB.
inline constexpr std::size_t kMostPictureBoxes = 7'000;

// Draws one step of the plan, the first one if it does not flush, as a part of an HTML page: a row
// for each pp rank with its F, I, W and B, and under it what its memory holds. Simulates the plan's
// programs again. Steps with too many actions show the first and the last ranks alone, and if that
// is not enough, neighbours as one box; the picture says so. The page's style has the colours of
// what no other picture has (forecast_page.html).
// worker_memory_bytes: what a worker has for a rank; 0: not known.
absl::StatusOr<std::string> DrawStep(const plan::Plan& plan, std::int64_t worker_memory_bytes);

}  // namespace takt::cli
