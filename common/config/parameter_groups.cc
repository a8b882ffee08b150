// SPDX-License-Identifier: Apache-2.0
#include "common/config/parameter_groups.h"

namespace takt::config {

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t p = 0, n = 0;
  // Where to go on if what follows the last star does not match: the star takes one character more.
  std::size_t star = kNone, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != kNone) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

std::optional<std::size_t> GroupOf(const std::vector<ParameterGroup>& groups,
                                   std::string_view name) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (MatchesPattern(groups[i].parameters, name)) return i;
  }
  return std::nullopt;
}

UpdateSettings SettingsOf(const JobSpec& job, const model::Parameter& parameter) {
  UpdateSettings settings{.weight_decay = parameter.decayed() ? TraitsOf(job).weight_decay : 0};
  if (job.muon.has_value() && !parameter.by_muon) {
    const Adamw& adamw = job.muon->adamw;
    settings.learning_rate_scale = adamw.learning_rate / job.muon->learning_rate;
    if (parameter.decayed()) settings.weight_decay = adamw.weight_decay;
  }
  const std::optional<std::size_t> index = GroupOf(job.groups, parameter.name);
  if (!index.has_value()) return settings;
  const ParameterGroup& group = job.groups[*index];
  settings.learning_rate_scale *= group.learning_rate_scale;
  if (group.weight_decay.has_value()) settings.weight_decay = *group.weight_decay;
  return settings;
}

}  // namespace takt::config
