// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/model/model.h"

namespace takt::layout {

// Returns the elements that a matrix [rows, columns] takes once a backend has packed it in bf16.
// Every backend fills up rows to 32 and columns to 64.
constexpr std::int64_t PackedElements(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kRows = 32, kColumns = 64;
  return (rows + kRows - 1) / kRows * kRows * ((columns + kColumns - 1) / kColumns * kColumns);
}

// Returns the elements of a matrix that is kept rounded as it is stored. Rows of zeros fill it up,
// so that products read whole vectors along both of its sides.
constexpr std::int64_t RoundedElements(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kVector = model::kBf16PerVector;
  return (rows + kVector - 1) / kVector * kVector * columns;
}

}  // namespace takt::layout
