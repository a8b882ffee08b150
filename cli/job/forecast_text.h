// SPDX-License-Identifier: Apache-2.0
// Prints ranked plans for people, or as one JSON object. The page of plans has the same tables.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cli/base/context.h"
#include "cli/base/text.h"
#include "common/plan/plan.h"
#include "common/plan/traffic.h"

namespace takt::cli {

// Returns the causes of a step's time in seconds, those of `takt explain` that a plan can tell
// apart.
std::array<std::pair<const char*, double>, 5> CausesOf(const plan::Parts& parts);

// Says why the candidate is where it is.
std::string WhyOf(const std::vector<plan::Forecast>& all, std::size_t index);

// Returns a row for each candidate, numbered from 1.
Table CandidateTable(const config::JobSpec& job, const plan::PlanOptions& options,
                     const std::vector<plan::Forecast>& candidates);

// Returns a row for each of the first `most` links between pp ranks, with what a step sends there.
Table MessageTable(const std::vector<plan::Messages>& messages, std::size_t most);

// Returns a row for each of the first `most` refusals.
Table RefusalTable(const config::JobSpec& job, const std::vector<plan::Refusal>& refused,
                   std::size_t most);

void PrintForecasts(const Context& context, const config::JobSpec& job,
                    const plan::PlanOptions& options, const plan::Forecasts& forecasts);

}  // namespace takt::cli
