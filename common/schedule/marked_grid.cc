// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/marked_grid.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::schedule {
namespace {

constexpr int kMostRows = 16;    // as many ranks, around the guilty one
constexpr int kCellsAround = 5;  // on each side of the guilty cell

}  // namespace

std::string MarkedGrid(const Schedule& schedule, int rank, int position) {
  const int first_rank =
      std::max(0, std::min(rank - kMostRows / 2, schedule.num_ranks() - kMostRows));
  const int last_rank = std::min(schedule.num_ranks(), first_rank + kMostRows);
  const int first = std::max(0, position - kCellsAround);
  const int last = position + kCellsAround + 1;

  std::size_t width = absl::StrCat(last).size();
  for (int r = first_rank; r < last_rank; ++r) {
    for (int i = first; i < std::min<int>(last, schedule.ranks[r].size()); ++i) {
      width = std::max(width, schedule.ranks[r][i].ToString().size());
    }
  }
  std::string grid = absl::StrFormat("%8s", "cell");
  for (int i = first; i < last; ++i) absl::StrAppendFormat(&grid, " %*d ", width, i + 1);
  for (int r = first_rank; r < last_rank; ++r) {
    absl::StrAppendFormat(&grid, "\nrank %3d", r);
    for (int i = first; i < last; ++i) {
      const bool inside = i < static_cast<int>(schedule.ranks[r].size());
      const bool guilty = r == rank && i == position;
      if (!inside && !guilty) break;
      absl::StrAppendFormat(&grid, "%s%*s%s", guilty ? "[" : " ", width,
                            inside ? schedule.ranks[r][i].ToString() : "?", guilty ? "]" : " ");
    }
  }
  return grid;
}

}  // namespace takt::schedule
