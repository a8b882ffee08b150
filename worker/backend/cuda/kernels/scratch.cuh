// SPDX-License-Identifier: Apache-2.0
// Decides how ops are cut, which decides both their scratch and the order of their sums. It depends
// on sizes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// Runs of rows. Within a run, a column is summed in the order of rows. Whatever sums columns has
// these runs, so a sum has the same bits whichever kernel makes it.
struct RowRuns {
  explicit RowRuns(std::int64_t all_rows)
      : rows(all_rows),
        rows_per_run(std::max<std::int64_t>(kFewest, (rows + kMost - 1) / kMost)),
        count((rows + rows_per_run - 1) / rows_per_run) {}
  // Returns the row behind the last one of a run. The last run may be shorter than others.
  constexpr std::int64_t end(std::int64_t run) const {
    return std::min((run + 1) * rows_per_run, rows);
  }
  static constexpr std::int64_t kFewest = 16;  // rows of a run
  static constexpr std::int64_t kMost = 512;   // runs
  std::int64_t rows, rows_per_run, count;
};

// The scratch of MuonUpdate begins with the sum of its SumOfSquares. That op's scratch follows.
inline constexpr std::int64_t kMuonSumBytes = 256;

// The stride of rows of partial sums, which makes every row 16-byte aligned.
inline std::int64_t PartialStride(std::int64_t columns) { return (columns + 3) / 4 * 4; }

// A norm's backward sums over rows on its way if it has more than kFewColumns, so that a row fills
// enough of a block of threads, and at most kMostSummedColumns, whose sums fit its registers.
inline constexpr std::int64_t kMostSummedColumns = 8192, kFewColumns = 128;

}  // namespace takt::backend::cuda
