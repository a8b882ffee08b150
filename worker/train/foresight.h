// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/id.h"

namespace takt::train {

// Decides, where steps overlap, whether a step foresees weights before the norm of its gradients is
// known, or *holds*: SPECULATE then waits for the norm, and the weights that it makes are always
// right.
//
// `always` foresees every step. Otherwise a step holds until enough steps in a row were not
// clipped, counted from the first step of this process's run. All ranks know the same norms, so
// they decide alike.
//
// Not synchronised, and it needs no lock: the decision of a step is made when the step before it
// learns its norm, and the slots of the program order both.
class Foresight {
 public:
  static constexpr std::int64_t kStepsWithoutClipping = 10;

  explicit Foresight(bool always) : always_(always) { holds_.fill(!always); }

  // Call it in any step whose predecessor was told.
  bool HoldsIn(StepId step) const { return holds_[Index(step)]; }

  // Tells whether the gradients of a step were clipped. Call it once a step, in order.
  void Tell(StepId step, bool clipped) {
    unclipped_ = clipped ? 0 : unclipped_ + 1;
    holds_[Index(StepId(step.value() + 1))] = !always_ && unclipped_ < kStepsWithoutClipping;
  }

 private:
  // Of two steps in a row, one may still be asked about while the other is decided.
  static std::size_t Index(StepId step) { return static_cast<std::size_t>(step.value()) % 2; }

  const bool always_;
  std::int64_t unclipped_ = 0;  // steps in a row; only NORM_EXCHANGE uses it
  std::array<bool, 2> holds_ = {};
};

}  // namespace takt::train
