// SPDX-License-Identifier: Apache-2.0
// Shows a timed schedule to people: as text, or as a picture in a file of its own.
#pragma once

#include <string>
#include <vector>

#include "common/schedule/action.h"

namespace takt::schedule {

// An overlapped pair is two of them at the same time. The F, which joins, comes first.
struct TimedAction {
  Action action;
  double start = 0, end = 0;  // from 0, end >= start; any unit
};

struct Timeline {
  std::string title;
  double makespan = 0;
  std::vector<std::vector<TimedAction>> ranks;  // each by start
};

// One line a rank, time from left to right. The text of an action is at its start, '-' follows as
// long as the action lasts, and '.' stands where the rank is idle. An overlapped pair is one cell:
// "(0F3;3B5)".
//   rank 0 |0F0 |0F1 |....|0B0 ----|0B1 ----|
std::string RenderGrid(const Timeline& timeline);

// An SVG with one row a rank. F, I, W, B, S and T have colours of their own, and kind and
// microbatch as labels (the microbatch alone where the picture would become too wide). Later chunks
// of a rank are darker, the F of an overlapped pair is above its B, and idle time is hatched. Under
// each row a curve shows the microbatch-chunks in flight over warm-up, steady phase and cool-down.
// At its end stand the rank's idle time and peak in flight. There are a legend and a time axis, and
// each action has its details as a tooltip.
std::string RenderSvg(const Timeline& timeline);

}  // namespace takt::schedule
