// SPDX-License-Identifier: Apache-2.0
// Holds how much of each resource is free from now on. The queue has one resource for each kind of
// worker and one for each identity whose workers are limited. Times are seconds from now.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace takt::placement {

inline constexpr double kForever = std::numeric_limits<double>::infinity();

using Amounts = std::vector<int>;  // by resource

// One caller at a time.
class Timeline final {
 public:
  // free: what is free now, and for ever unless it is taken.
  explicit Timeline(Amounts free) : steps_{{.from = 0, .free = std::move(free)}} {}

  // From `from` until `until` so much more is free. Negative amounts are taken.
  void Add(double from, double until, const Amounts& more);
  void Take(double from, double until, Amounts taken);

  // Chooses what to take where `free` is free. Returns nullopt if that is not enough. If it returns
  // nullopt for some amounts, it must do so for all smaller ones.
  using Choose = absl::FunctionRef<std::optional<Amounts>(const Amounts& free)>;
  struct Slot {
    double from = 0;
    Amounts taken;
  };
  // Returns the earliest slot of this length in which the same choice stays free, nullopt if none
  // begins at `latest` or before.
  std::optional<Slot> Earliest(double seconds, double latest, Choose choose) const;

 private:
  struct Step {
    double from = 0;
    Amounts free;  // until the next step
  };

  // Returns the index of the step that begins at `time`. It is made if there is none.
  std::size_t StepAt(double time);

  std::vector<Step> steps_;  // by time; the first begins at 0
};

}  // namespace takt::placement
