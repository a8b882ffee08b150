// SPDX-License-Identifier: Apache-2.0
// Finds where each rank lists the meetings of a spread vocabulary.
#pragma once

#include <vector>

#include "common/base/id.h"
#include "common/program/program.h"
#include "common/schedule/graph.h"

namespace takt::program {

// One meeting of all ranks, on one of them.
struct MeetingPoint {
  Op op = Op::kShare;
  MicrobatchId microbatch;
  // Position in the rank's row: the meeting is listed right after the action there; -1: before the
  // row.
  int after = -1;
};

// The meetings of one rank, in the order of its lists, which is the same on all ranks.
using MeetingPoints = std::vector<MeetingPoint>;

// Returns the meetings by rank; empty ones if the schedule does not spread the vocabulary.
//
// The actions of all ranks have one order, by their ends if F, I, W, S and T took one unit, B two
// and messages none. In it a meeting stands right after the last action that it needs: SHARE after
// the F of the last stage, GATHER after the last S, RETURN after the last T, ROWS_GRAD after the I
// or B of stage 0. ROWS stands after the second last F of stage 0 before its own. Every instruction
// of every rank then waits only for what stands before it in this order, so the programs cannot
// wait in a circle, whatever the costs are.
std::vector<MeetingPoints> FindMeetingPoints(const schedule::ActionGraph& graph);

}  // namespace takt::program
