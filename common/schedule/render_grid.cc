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

// One cell of the picture: an action, or the two of an overlapped pair.
struct Cell {
  std::string text;
  double start = 0, end = 0;
};

std::vector<Cell> Cells(const std::vector<TimedAction>& row) {
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::string text = row[i].action.ToString();
    if (row[i].action.joins_next && i + 1 < row.size()) {
      text = absl::StrCat("(", text, ";", row[i + 1].action.ToString(), ")");
      ++i;
    }
    cells.push_back({std::move(text), row[i].start, row[i].end});
  }
  return cells;
}

// Characters per unit of time, so many that each cell has room for its text.
double Scale(const std::vector<std::vector<Cell>>& rows, double makespan) {
  double scale = 0;
  for (const std::vector<Cell>& row : rows) {
    for (const Cell& cell : row) {
      if (cell.end <= cell.start) continue;
      const double width = static_cast<double>(cell.text.size() + 1);
      scale = std::max(scale, width / (cell.end - cell.start));
    }
  }
  return scale > 0 ? std::min(scale, kWidestLine / makespan) : 1;
}

}  // namespace

std::string RenderGrid(const Timeline& timeline) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& row : timeline.ranks) rows.push_back(Cells(row));
  const double scale = Scale(rows, timeline.makespan);
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  std::string grid = timeline.title.empty() ? "" : absl::StrCat(timeline.title, "\n");
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::string line(column(timeline.makespan) + 1, '.');
    for (const Cell& cell : rows[rank]) {
      const std::size_t begin = column(cell.start);
      const std::size_t end = column(cell.end);
      line[begin] = line[end] = '|';
      if (end - begin < 2) continue;
      std::string text = cell.text.substr(0, end - begin - 1);
      text.resize(end - begin - 1, '-');
      line.replace(begin + 1, text.size(), text);
    }
    absl::StrAppendFormat(&grid, "rank %2d %s\n", rank, line);
  }
  return grid;
}

}  // namespace takt::schedule
