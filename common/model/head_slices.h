// SPDX-License-Identifier: Apache-2.0
// On devices the products of the head go over slices of the rows of a microbatch. Where B follows
// its F at once, each slice goes through all of them before the next one, so that logits are only
// those of a slice (docs/memory.md). The gradient of the matrix is a sum over slices in ascending
// order wherever the logits are, so it has the same bits under every schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace takt::model {

// The most logits of a slice, which take 512 MiB in bf16. kUncutRows are not cut, however many
// words there are: a slice reads and writes the gradient of the matrix, and the product of fewer
// rows would not hide that. Other numbers change the bits of jobs on devices.
inline constexpr std::int64_t kMostSliceLogits = std::int64_t{1} << 28;
inline constexpr std::int64_t kUncutRows = 1024;

// Returns the rows of each slice but the last, which has what is left. Slices are about equal, and
// begin at multiples of 64 rows, where rows are aligned for every kernel.
constexpr std::int64_t HeadSliceOf(std::int64_t rows, std::int64_t vocab) {
  constexpr std::int64_t kAligned = 64;
  if (rows <= kUncutRows || rows * vocab <= kMostSliceLogits) return rows;
  const std::int64_t most = std::max(kUncutRows, kMostSliceLogits / vocab / kAligned * kAligned);
  const std::int64_t slices = (rows + most - 1) / most;
  const std::int64_t least = (rows + slices - 1) / slices;
  return (least + kAligned - 1) / kAligned * kAligned;
}

struct RowSlice {
  std::int64_t first = 0, rows = 0;
};

// Returns the slices of so many rows in ascending order. slice: the rows of each but the last.
inline std::vector<RowSlice> RowSlices(std::int64_t rows, std::int64_t slice) {
  std::vector<RowSlice> slices;
  for (std::int64_t first = 0; first < rows; first += slice)
    slices.push_back({.first = first, .rows = std::min(slice, rows - first)});
  return slices;
}

}  // namespace takt::model
