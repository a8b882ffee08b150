// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/record.h"

#include <algorithm>
#include <utility>

namespace takt::store {

void JobRecord::Enter(JobState to, absl::Time time, std::string why) {
  state = to;
  reason = why;
  transitions.push_back({to, time, std::move(why)});
  while (transitions.size() > kMostTransitions) {
    const auto running = std::ranges::find(transitions, JobState::kRunning, &Transition::state);
    auto oldest = transitions.begin() + 1;
    if (oldest == running) ++oldest;
    transitions.erase(oldest);
    ++forgotten_transitions;
  }
}

std::size_t JobRecord::FirstTransitionAfter(std::int64_t seen) const {
  const auto size = static_cast<std::int64_t>(transitions.size());
  // Of a list with gaps, the first two are older than what was forgotten.
  const std::int64_t oldest = forgotten_transitions > 0 && seen > 0 ? 2 : 0;
  return static_cast<std::size_t>(std::clamp(seen - forgotten_transitions, oldest, size));
}

}  // namespace takt::store
