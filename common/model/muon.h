// SPDX-License-Identifier: Apache-2.0
// Says what Muon's update of one matrix takes (MuonUpdate of worker/backend/muon_update.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace takt::model {

// Returns the floats that the update needs beside its tensors: two matrices of the shape, and two
// squares of its shorter side.
constexpr std::int64_t MuonScratchFloats(std::int64_t rows, std::int64_t columns) {
  const std::int64_t side = std::min(rows, columns);
  return 2 * (rows * columns + side * side);
}

// Returns the FLOPs of its products: in each of five iterations two of the matrix with a square of
// its shorter side, and one of that square with itself.
constexpr double MuonFlops(std::int64_t rows, std::int64_t columns) {
  const auto side = static_cast<double>(std::min(rows, columns));
  const auto elements = static_cast<double>(rows) * static_cast<double>(columns);
  return 5 * (4 * side * elements + 2 * side * side * side);
}

}  // namespace takt::model
