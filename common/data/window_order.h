// SPDX-License-Identifier: Apache-2.0
// Says which window each row of each microbatch reads. Users rely on this order. Any (step, rank)
// finds its data alone, and a run that is resumed, or has another number of stages or replicas,
// consumes the same windows.
//
// Rows are numbered from the first step on. Row p of the run is row p % n of epoch p / n, where n
// is the number of windows. Without shuffling that number is the window; with shuffling the window
// is the epoch's permutation of it. So every epoch visits every window exactly once, and a batch
// may contain the end of one epoch and the beginning of the next.
#pragma once

#include <cstdint>

#include "common/base/id.h"

namespace takt::data {

struct BatchShape {
  int global = 1;      // rows of a step, over all dp ranks
  int microbatch = 1;  // rows of a microbatch
  int dp_size = 1;
};

// The place of one row in the run. Step k (1-based) takes rows (k-1)*global .. k*global-1, in that
// order over dp ranks, then microbatches, then rows of the microbatch.
std::int64_t RowPosition(const BatchShape& shape, StepId step, DpRank dp_rank,
                         MicrobatchId microbatch, int row);

// Stateless and immutable: safe from any thread.
class WindowOrder {
 public:
  // Precondition: num_windows >= 1.
  WindowOrder(std::int64_t num_windows, bool shuffle, std::uint64_t seed);

  // The window that is read at `position` of the run, counted from 0.
  std::int64_t WindowAt(std::int64_t position) const;

 private:
  std::int64_t Permuted(std::int64_t index, std::int64_t epoch) const;

  const std::int64_t num_windows_;
  const bool shuffle_;
  const std::uint64_t seed_;
  const int half_bits_;  // windows are numbers of 2 * half_bits_ bits
};

}  // namespace takt::data
