// SPDX-License-Identifier: Apache-2.0
// Says which rate and which decay the optimizer of a job uses for a parameter.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "common/config/job_spec.h"
#include "common/model/model.h"

namespace takt::config {

// Returns whether the pattern, in which `*` stands for any characters or none, matches the whole
// name. It takes at most as long as the product of both lengths.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// Returns the first of the groups that matches the name, or nullopt if none does.
std::optional<std::size_t> GroupOf(const std::vector<ParameterGroup>& groups,
                                   std::string_view name);

struct UpdateSettings {
  double learning_rate_scale = 1;  // of the step's learning rate
  double weight_decay = 0;
};
// Returns what the job's groups say of a parameter. Where they say nothing, tensors with two or
// more dimensions decay, and others do not. parameter: of the job's model (BuildModelOf).
UpdateSettings SettingsOf(const JobSpec& job, const model::Parameter& parameter);

}  // namespace takt::config
