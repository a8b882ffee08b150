// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace takt::placement {

std::size_t Timeline::StepAt(double time) {
  auto it = std::ranges::lower_bound(steps_, time, {}, &Step::from);
  if (it == steps_.end() || it->from != time) {
    Amounts free = std::prev(it)->free;
    it = steps_.insert(it, {.from = time, .free = std::move(free)});
  }
  return it - steps_.begin();
}

void Timeline::Add(double from, double until, const Amounts& more) {
  if (!(from < until)) return;
  const std::size_t begin = StepAt(from);
  const std::size_t end = std::isinf(until) ? steps_.size() : StepAt(until);
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t k = 0; k < more.size(); ++k) steps_[i].free[k] += more[k];
  }
}

void Timeline::Take(double from, double until, Amounts taken) {
  for (int& amount : taken) amount = -amount;
  Add(from, until, taken);
}

std::optional<Timeline::Slot> Timeline::Earliest(double seconds, double latest,
                                                 Choose choose) const {
  std::size_t first = 0;
  while (first < steps_.size() && steps_[first].from <= latest) {
    const double until = steps_[first].from + seconds;
    Amounts least = steps_[first].free;
    std::optional<Amounts> taken = choose(least);
    std::size_t step = first;
    while (taken && step + 1 < steps_.size() && steps_[step + 1].from < until) {
      const Amounts& free = steps_[++step].free;
      bool less = false;
      for (std::size_t k = 0; k < least.size(); ++k) {
        less |= free[k] < least[k];
        least[k] = std::min(least[k], free[k]);
      }
      if (less) taken = choose(least);
    }
    if (taken) return Slot{.from = steps_[first].from, .taken = *std::move(taken)};
    // No slot spans a step that alone has too little.
    first = step > first && choose(steps_[step].free) ? first + 1 : step + 1;
  }
  return std::nullopt;
}

}  // namespace takt::placement
