// SPDX-License-Identifier: Apache-2.0
// Cuts matmuls into blocks of the output by their shape alone. Each block is one single-threaded
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

// Limits the sizes that a product is cut into.
struct BlockLimits {
  std::int64_t rows, columns;              // at most
  std::int64_t least_rows, least_columns;  // below these, packing costs more than parallelism gains
  std::int64_t column_unit = 16;           // blocks begin at multiples of it
};

// Cuts an output [m,n] whose elements are sums of k products.
MatmulBlocks CutProduct(std::int64_t m, std::int64_t n, std::int64_t k, const BlockLimits& limits);

// The cut depends on the op's shape and never on the number of threads, because a block's size
// decides the order of its sums inside oneDNN.
MatmulBlocks CutMatmul(const Matmul& op);

// Computes one block.  scratch: belongs to the calling thread alone; grown as needed.
absl::Status RunMatmulBlock(const Matmul& op, const MatmulBlocks& blocks, std::int64_t block,
                            const Kernels& kernels, std::vector<float>& scratch);

// Sets the number of OpenMP threads of the calling thread to one. Debian's oneDNN runs its loops on
// OpenMP threads, and how it cuts them depends on how many the calling thread may use.
void UseOneOpenMpThread();

}  // namespace takt::backend
