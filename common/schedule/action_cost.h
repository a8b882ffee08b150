// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/status.h"
#include "common/cost/costs.h"
#include "common/schedule/action.h"

namespace takt::schedule {

// Returns how long an F, I, W or B takes that runs on its own. The costs of S and T depend on the
// rank (cost::Costs).
inline double CostOf(const cost::Costs& costs, const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return costs.F(action.stage);
    case ActionKind::kInputGrad:
      return costs.I(action.stage);
    case ActionKind::kWeightGrad:
      return costs.W(action.stage);
    case ActionKind::kBackward:
      return costs.B(action.stage);
    case ActionKind::kVocabularyForward:
    case ActionKind::kVocabularyBackward:
      break;
  }
  TAKT_CHECK(false);
}

}  // namespace takt::schedule
