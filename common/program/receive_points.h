// SPDX-License-Identifier: Apache-2.0
// Where each rank lists its receives.
#pragma once

#include <vector>

#include "common/schedule/graph.h"

namespace takt::program {

// A message that a rank receives.
struct ReceivePoint {
  // The F (activation) or the I or B (gradient) that makes it, on another rank.
  schedule::ActionNumber producer = -1;
  // Position, in the receiver's row, of its last action that precedes the making in every run; -1:
  // none does. Right after it, whatever that action and earlier ones have released is free for
  // certain when the message is ready.
  int after = -1;
};

// By receiving rank, in the order of the list: ascending `after`, and in the sender's order for
// each sender.
std::vector<std::vector<ReceivePoint>> FindReceivePoints(const schedule::ActionGraph& graph);

}  // namespace takt::program
