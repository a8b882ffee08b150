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

// The most rows of a slice. With fewer, reading and writing the gradient of the matrix once a slice
// takes longer than it can be hidden behind the product. Another number changes the bits of jobs on
// devices with more rows in a microbatch.
inline constexpr std::int64_t kMostHeadRows = 2048;

// Returns the rows of each slice but the last, which has what is left. Slices are about equal, and
// begin at multiples of 64 rows, where rows are aligned for every kernel.
constexpr std::int64_t HeadSliceOf(std::int64_t rows) {
  constexpr std::int64_t kAligned = 64;
  if (rows <= kMostHeadRows) return rows;
  const std::int64_t slices = (rows + kMostHeadRows - 1) / kMostHeadRows;
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
