// SPDX-License-Identifier: Apache-2.0
// Rounds the operands of products to the values of FP8, each block of values with its scale
// (fp8.h).
#pragma once

#include <array>
#include <cstdint>

#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/fp8.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Belongs to one backend. Thread: one caller at a time.
class Fp8Rounding {
 public:
  struct Matrix {
    Operand input;
    Output output;                                   // has no gaps between rows
    std::int64_t rows = 0, columns = 0, stride = 0;  // stride: of the input
    Fp8 fp8;
    // With Fp8Scaling::kBlock so many values share a scale: 1 x 128, 128 x 1 or 128 x 128.
    std::int64_t block_rows = 1, block_columns = kFp8BlockSize;
  };

  // Borrows all of them. counters: may be null.
  Fp8Rounding(ThreadTeam& team, const Kernels& kernels, Fp8Counters* counters)
      : team_(team), kernels_(kernels), counters_(counters) {}

  // The result does not depend on the number of threads: a largest value has no order.
  void Round(const Matrix& matrix);

 private:
  // A part of a matrix. It has at most kStrip columns.
  struct Region {
    std::int64_t row, column, rows, columns;
  };
  static constexpr std::int64_t kStrip = 512;  // a multiple of a block and of every vector

  // The scales of the columns of a region. The others are 0, because kernels read whole vectors.
  struct Scales {
    std::array<float, kStrip> scale{}, inverse{};
    // Sets those of `count` columns by the bits of their largest finite magnitude.
    void Set(std::int64_t column, std::int64_t count, std::uint32_t largest, bool is_e5m2);
  };

  std::uint32_t Largest(const Matrix& matrix);
  void FindScales(const Matrix& matrix, const Region& region, Scales& scales) const;
  Fp8Counts RoundRegion(const Matrix& matrix, const Region& region, const Scales& scales) const;

  ThreadTeam& team_;
  const Kernels& kernels_;
  Fp8Counters* const counters_;
};

}  // namespace takt::backend
