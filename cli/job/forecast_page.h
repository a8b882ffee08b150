// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "common/plan/plan.h"

namespace takt::cli {

// Makes one HTML page of ranked plans that requests nothing and has no script: the candidates with
// their reasons, where times come from, what was refused, and of the first five candidates a
// predicted step, the memory over it, stages and ranks. Its style is in forecast_page.html.
absl::StatusOr<std::string> RenderForecastPage(const config::JobSpec& job,
                                               const plan::PlanOptions& options,
                                               const plan::Forecasts& forecasts);

// Writes the page to a new file and says so. Empty `file`: does nothing. Errors: those of
// WriteNewFile.
absl::Status WriteForecastPage(const Context& context, const std::string& file,
                               const config::JobSpec& job, const plan::PlanOptions& options,
                               const plan::Forecasts& forecasts);

}  // namespace takt::cli
