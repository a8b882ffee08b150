// SPDX-License-Identifier: Apache-2.0
// Improves orders by small moves.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "common/search/evaluator.h"

namespace takt::search {

// The rest that a search may still spend.
struct Budget {
  std::int64_t candidates = 0;
  std::function<bool()> out_of_time;
  bool time_capped = false;  // out_of_time has answered yes

  bool IsSpent() {
    if (!time_capped && candidates % 16 == 0) time_capped = out_of_time();
    return time_capped || candidates <= 0;
  }
};

struct Order {
  Rows rows;  // F and I only
  FillRule rule;
  double makespan = kNever;
  std::string origin;  // what it grew from
};

// Moves one action at a time past its neighbours, mostly on the critical path. It keeps an order
// that is no worse and, less and less often, one that is a little worse. It ends at `target` or
// when the budget is spent, and returns the best order seen. Deterministic for a state of `random`.
Order Improve(Evaluator& evaluator, Order start, double target, Budget& budget,
              std::mt19937_64& random);

}  // namespace takt::search
