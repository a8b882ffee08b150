// SPDX-License-Identifier: Apache-2.0
// Matmuls cut into blocks of the output by their shape alone; each block is one single-threaded
// oneDNN call.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Blocks of rows x columns cover the output in row-major order; the last ones may be smaller.
struct MatmulBlocks {
  std::int64_t rows = 0, columns = 0;
  std::int64_t per_row = 0, count = 0;  // blocks side by side; blocks in all
};

// Sizes that a product is cut into.
struct BlockLimits {
  std::int64_t rows, columns;              // at most
  std::int64_t least_rows, least_columns;  // below, packing costs more than parallelism gains
  std::int64_t column_unit = 16;           // blocks begin at multiples of it
};

// Of an output [m,n] whose elements are sums of k products.
MatmulBlocks CutProduct(std::int64_t m, std::int64_t n, std::int64_t k, const BlockLimits& limits);

// A function of the op's shape, never of the number of threads: a block's size decides the order of
// its sums inside oneDNN.
MatmulBlocks CutMatmul(const Matmul& op);

// Computes one block.  scratch: grown as needed, of the calling thread alone.
absl::Status RunMatmulBlock(const Matmul& op, const MatmulBlocks& blocks, std::int64_t block,
                            const Kernels& kernels, std::vector<float>& scratch);

}  // namespace takt::backend
