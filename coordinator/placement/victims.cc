// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/victims.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace takt::placement {

Victims ChooseVictims(Victims candidates, absl::FunctionRef<bool(const Victims&)> suffices) {
  if (!suffices(candidates)) return {};
  std::ranges::sort(candidates, {}, [](const Victim& victim) {
    const Holder& holder = *victim.holder;
    return std::tuple<int, double, const std::string&>(holder.priority, holder.held_seconds,
                                                       holder.name);
  });
  Victims largest = candidates;
  std::ranges::stable_sort(largest, std::greater(), &Victim::num_useful);
  Victims few;
  while (!suffices(few)) few.push_back(largest[few.size()]);
  // Takes each candidate that leaves a way to suffice with so few: the largest of the others.
  Victims chosen;
  for (const Victim& candidate : candidates) {
    if (chosen.size() == few.size()) break;
    std::erase(largest, candidate);
    Victims trial = chosen;
    trial.push_back(candidate);
    const std::size_t more = std::min(largest.size(), few.size() - trial.size());
    trial.insert(trial.end(), largest.begin(), largest.begin() + more);
    if (suffices(trial)) chosen.push_back(candidate);
  }
  return chosen.size() == few.size() ? chosen : few;
}

}  // namespace takt::placement
