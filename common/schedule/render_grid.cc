// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/schedule/render.h"

namespace takt::schedule {
namespace {

constexpr int kWidestLine =
    1 << 16;  // characters; actions of very unequal length lose their text instead

// Characters per unit of time: the shortest action has room for its text.
double Scale(const Timeline& timeline) {
  double shortest = timeline.makespan;
  std::size_t longest_text = 1;
  for (const auto& row : timeline.ranks) {
    for (const TimedAction& timed : row) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
      longest_text = std::max(longest_text, timed.action.ToString().size());
    }
  }
  if (!(shortest > 0)) return 1;
  return std::min(static_cast<double>(longest_text + 1) / shortest,
                  kWidestLine / timeline.makespan);
}

}  // namespace

std::string RenderGrid(const Timeline& timeline) {
  const double scale = Scale(timeline);
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  std::string grid = timeline.title.empty() ? "" : absl::StrCat(timeline.title, "\n");
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string line(column(timeline.makespan) + 1, '.');
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const std::size_t begin = column(timed.start);
      const std::size_t end = column(timed.end);
      line[begin] = line[end] = '|';
      if (end - begin < 2) continue;
      std::string text = timed.action.ToString().substr(0, end - begin - 1);
      text.resize(end - begin - 1, '-');
      line.replace(begin + 1, text.size(), text);
    }
    absl::StrAppendFormat(&grid, "rank %2d %s\n", rank, line);
  }
  return grid;
}

}  // namespace takt::schedule
