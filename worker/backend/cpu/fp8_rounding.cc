// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/fp8_rounding.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

namespace takt::backend {
namespace {

constexpr std::int64_t kRowsPerPiece = 32;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Operand At(const Operand& matrix, std::int64_t element) {
  return matrix.bf16 != nullptr ? Operand(matrix.bf16 + element) : Operand(matrix.f32 + element);
}

Output At(const Output& matrix, std::int64_t element) {
  return matrix.bf16 != nullptr ? Output(matrix.bf16 + element) : Output(matrix.f32 + element);
}

float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// Returns the exponent of the scale (fp8.h) for the bits of the largest magnitude, which is finite.
// The largest value of either format is 1.75 times a power of two.
int ScaleExponent(std::uint32_t largest, bool is_e5m2) {
  constexpr std::uint32_t kMantissaOfMost = 0x600000;  // of 1.75
  constexpr int kMostExponent = 100;                   // so that no result is a denormal
  const int exponent = static_cast<int>(largest >> 23);
  if (exponent == 0) return 0;
  const int above = (largest & 0x7fffff) > kMantissaOfMost ? 1 : 0;
  return std::min(kMostExponent, (is_e5m2 ? 15 : 8) - (exponent - 127) - above);
}

}  // namespace

void Fp8Rounding::Scales::Set(std::int64_t column, std::int64_t count, std::uint32_t largest,
                              bool is_e5m2) {
  const int exponent = ScaleExponent(largest, is_e5m2);
  std::fill_n(scale.begin() + column, count, PowerOfTwo(exponent));
  std::fill_n(inverse.begin() + column, count, PowerOfTwo(-exponent));
}

void Fp8Rounding::Round(const Matrix& matrix) {
  const bool is_whole = matrix.fp8.scaling == Fp8Scaling::kTensor;
  const std::uint32_t largest = is_whole ? Largest(matrix) : 0;
  const std::int64_t piece_rows = std::max(kRowsPerPiece, is_whole ? 1 : matrix.block_rows);
  const std::int64_t band = is_whole ? piece_rows : matrix.block_rows;
  const std::int64_t strips = CeilDiv(matrix.columns, kStrip);
  team_.ParallelFor(CeilDiv(matrix.rows, piece_rows) * strips, [&](std::int64_t piece, int) {
    const std::int64_t first = piece / strips * piece_rows, column = piece % strips * kStrip;
    const std::int64_t end = std::min(matrix.rows, first + piece_rows);
    Region region{.row = first,
                  .column = column,
                  .rows = band,
                  .columns = std::min(kStrip, matrix.columns - column)};
    Scales scales;
    if (is_whole) scales.Set(0, region.columns, largest, matrix.fp8.is_e5m2());
    Fp8Counts sum;
    for (; region.row < end; region.row += band) {
      region.rows = std::min(band, end - region.row);
      if (!is_whole) FindScales(matrix, region, scales);
      const Fp8Counts counts = RoundRegion(matrix, region, scales);
      sum.overflows += counts.overflows;
      sum.underflows += counts.underflows;
    }
    if (counters_ != nullptr) counters_->Add(matrix.fp8.operand, sum);
  });
}

std::uint32_t Fp8Rounding::Largest(const Matrix& matrix) {
  std::vector<std::uint32_t> by_thread(static_cast<std::size_t>(team_.size()));
  team_.ParallelFor(CeilDiv(matrix.rows, kRowsPerPiece), [&](std::int64_t piece, int thread) {
    const std::int64_t end = std::min(matrix.rows, (piece + 1) * kRowsPerPiece);
    std::uint32_t& largest = by_thread[static_cast<std::size_t>(thread)];
    for (std::int64_t row = piece * kRowsPerPiece; row < end; ++row) {
      largest = std::max(
          largest, kernels_.fp8_largest(At(matrix.input, row * matrix.stride), matrix.columns));
    }
  });
  return *std::ranges::max_element(by_thread);
}

void Fp8Rounding::FindScales(const Matrix& matrix, const Region& region, Scales& scales) const {
  const bool is_e5m2 = matrix.fp8.is_e5m2();
  const auto row_at = [&](std::int64_t row, std::int64_t column) {
    return At(matrix.input, (region.row + row) * matrix.stride + region.column + column);
  };
  if (matrix.block_columns == 1) {
    std::array<std::uint32_t, kStrip> largest{};
    for (std::int64_t row = 0; row < region.rows; ++row)
      kernels_.fp8_largest_by_column(row_at(row, 0), region.columns, largest.data());
    for (std::int64_t column = 0; column < region.columns; ++column)
      scales.Set(column, 1, largest[static_cast<std::size_t>(column)], is_e5m2);
    return;
  }
  for (std::int64_t column = 0; column < region.columns; column += matrix.block_columns) {
    const std::int64_t count = std::min(matrix.block_columns, region.columns - column);
    std::uint32_t largest = 0;
    for (std::int64_t row = 0; row < region.rows; ++row)
      largest = std::max(largest, kernels_.fp8_largest(row_at(row, column), count));
    scales.Set(column, count, largest, is_e5m2);
  }
}

Fp8Counts Fp8Rounding::RoundRegion(const Matrix& matrix, const Region& region,
                                   const Scales& scales) const {
  Fp8Counts sum;
  for (std::int64_t row = region.row; row < region.row + region.rows; ++row) {
    const Fp8Counts counts =
        kernels_.round_fp8({.input = At(matrix.input, row * matrix.stride + region.column),
                            .output = At(matrix.output, row * matrix.columns + region.column),
                            .count = region.columns,
                            .scales = scales.scale.data(),
                            .inverses = scales.inverse.data(),
                            .is_e5m2 = matrix.fp8.is_e5m2()});
    sum.overflows += counts.overflows;
    sum.underflows += counts.underflows;
  }
  return sum;
}

}  // namespace takt::backend
