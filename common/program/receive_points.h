// SPDX-License-Identifier: Apache-2.0
// Finds where each rank lists its receives.
#pragma once

#include <vector>

#include "common/program/unrolled_schedule.h"
#include "common/schedule/graph.h"

namespace takt::program {

// A message that a rank receives.
struct ReceivePoint {
  // The F (activation) or the I or B (gradient) that makes it, on another rank.
  schedule::ActionNumber producer = -1;
  // Position in the receiver's row: the receive is listed right after the action there; -1: before
  // the row. In a body it is the last action of the receiver that precedes the making in every run.
  // So whatever that action and earlier ones have released is free for certain when the message is
  // ready. A prologue runs one instruction at a time, so there the receive stands right before the
  // action that takes the message.
  int after = -1;
};

// The receives of one rank, in the order of its lists: ascending `after`, and in the sender's order
// for each sender. A message is received in the part in which it is made.
struct ReceivePoints {
  std::vector<ReceivePoint> prologue, body;
};

// Returns the receives by receiving rank. graph: of steps.schedule.
std::vector<ReceivePoints> FindReceivePoints(const schedule::ActionGraph& graph,
                                             const UnrolledSchedule& steps);

}  // namespace takt::program
