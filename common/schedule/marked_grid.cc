// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/marked_grid.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::schedule {
namespace {

constexpr int kMostRows = 16;    // as many ranks, around the guilty one
constexpr int kCellsAround = 5;  // on each side of the guilty cell

std::vector<std::string> Cells(const Row& row) {
  std::vector<std::string> cells;
  for (int i = 0; i < static_cast<int>(row.size()); ++i) {
    cells.push_back(CellText(row, i));
    if (BeginsPair(row, i)) ++i;
  }
  return cells;
}

}  // namespace

std::string Place(const Schedule& schedule, int rank, int position) {
  return absl::StrCat("rank ", rank, ", cell ", CellNumber(schedule.ranks[rank], position));
}

std::string MarkedGrid(const Schedule& schedule, int rank, int position) {
  const int first_rank =
      std::max(0, std::min(rank - kMostRows / 2, schedule.num_ranks() - kMostRows));
  const int last_rank = std::min(schedule.num_ranks(), first_rank + kMostRows);
  const int marked = CellNumber(schedule.ranks[rank], position) - 1;
  const int first = std::max(0, marked - kCellsAround);
  const int last = marked + kCellsAround + 1;

  std::vector<std::vector<std::string>> rows;
  std::size_t width = absl::StrCat(last).size();
  for (int r = first_rank; r < last_rank; ++r) {
    rows.push_back(Cells(schedule.ranks[r]));
    for (int i = first; i < std::min<int>(last, rows.back().size()); ++i) {
      width = std::max(width, rows.back()[i].size());
    }
  }
  std::string grid = absl::StrFormat("%8s", "cell");
  for (int i = first; i < last; ++i) absl::StrAppendFormat(&grid, " %*d ", width, i + 1);
  for (int r = first_rank; r < last_rank; ++r) {
    const std::vector<std::string>& cells = rows[r - first_rank];
    absl::StrAppendFormat(&grid, "\nrank %3d", r);
    for (int i = first; i < last; ++i) {
      const bool inside = i < static_cast<int>(cells.size());
      const bool guilty = r == rank && i == marked;
      if (!inside && !guilty) break;
      absl::StrAppendFormat(&grid, "%s%*s%s", guilty ? "[" : " ", width, inside ? cells[i] : "?",
                            guilty ? "]" : " ");
    }
  }
  return grid;
}

}  // namespace takt::schedule
