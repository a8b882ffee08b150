// SPDX-License-Identifier: Apache-2.0
// Prints ranked plans for people, or as one JSON object.
#pragma once

#include "cli/base/context.h"
#include "common/plan/plan.h"

namespace takt::cli {

void PrintForecasts(const Context& context, const config::JobSpec& job,
                    const plan::PlanOptions& options, const plan::Forecasts& forecasts);

}  // namespace takt::cli
