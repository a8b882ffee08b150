// SPDX-License-Identifier: Apache-2.0
#include "common/sim/random_schedule.h"

#include <algorithm>

#include "rapidcheck.h"

namespace takt::sim {

using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

// A random valid order with split and joint backwards in either placement: each step runs any
// action that can.
Schedule AnyOrder() {
  Schedule schedule{.name = "random"};
  const int num_ranks = Uniform(1, 6);
  const bool v = Uniform(0, 2) == 0;
  schedule.placement = v ? schedule::Placement::kV : schedule::Placement::kLoop;
  schedule.num_stages = num_ranks * (v ? 2 : Uniform(1, 4));
  schedule.num_microbatches = Uniform(1, 7);
  schedule.ranks.resize(num_ranks);
  const int last = schedule.num_stages - 1;
  const auto row_of = [&](const Action& action) -> auto& {
    return schedule.ranks[RankOfStage(schedule.placement, num_ranks, action.stage).value()];
  };
  std::vector<Action> ready;
  for (int m = 0; m < schedule.num_microbatches; ++m) {
    ready.push_back({StageId(0), ActionKind::kForward, MicrobatchId(m)});
  }
  while (!ready.empty()) {
    const std::size_t pick = Uniform(0, static_cast<int>(ready.size()));
    const Action action = ready[pick];
    ready.erase(ready.begin() + pick);
    row_of(action).push_back(action);
    const auto backward = [&](int stage) {
      const ActionKind kind = Uniform(0, 2) == 0 ? ActionKind::kBackward : ActionKind::kInputGrad;
      ready.push_back({StageId(stage), kind, action.microbatch});
    };
    const int stage = action.stage.value();
    if (action.kind == ActionKind::kForward) {
      if (stage < last) {
        ready.push_back({StageId(stage + 1), ActionKind::kForward, action.microbatch});
      } else {
        backward(last);
      }
      continue;
    }
    if (action.kind == ActionKind::kInputGrad) {
      ready.push_back({action.stage, ActionKind::kWeightGrad, action.microbatch});
    }
    if (action.kind != ActionKind::kWeightGrad && stage > 0) backward(stage - 1);
  }
  return schedule;
}

Schedule AnySchedule() { return Uniform(0, 2) == 0 ? AnyFamily() : AnyOrder(); }

}  // namespace takt::sim
