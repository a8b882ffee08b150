// SPDX-License-Identifier: Apache-2.0
// A timed schedule for people: as text, or as a picture that stands alone.
#pragma once

#include <string>
#include <vector>

#include "common/schedule/action.h"

namespace takt::schedule {

// An overlapped pair is two of them at the same time, the F, which joins, first.
struct TimedAction {
  Action action;
  double start = 0, end = 0;  // from 0, end >= start; any unit
};

struct Timeline {
  std::string title;
  double makespan = 0;
  std::vector<std::vector<TimedAction>> ranks;  // each by start
};

// One line a rank, time from left to right: an action's text at its start, '-' as long as it lasts,
// '.' where the rank is idle. An overlapped pair is one cell: "(0F3;3B5)".
//   rank 0 |0F0 |0F1 |....|0B0 ----|0B1 ----|
std::string RenderGrid(const Timeline& timeline);

// SVG: one row a rank, F, I, W and B in colours of their own and labelled kind and microbatch (by
// microbatch alone where the picture would become too wide), later chunks of a rank darker, the F
// of an overlapped pair above its B, idle time hatched; under each row the microbatch-chunks in
// flight over warm-up, steady phase and cool-down; at its end the rank's idle time and peak in
// flight. A legend, a time axis; details of an action as a tooltip.
std::string RenderSvg(const Timeline& timeline);

}  // namespace takt::schedule
