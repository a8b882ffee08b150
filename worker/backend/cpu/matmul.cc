// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/matmul.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace takt::backend {
namespace {

// One block takes a core about 2 ms at 200 GFLOP/s for k = 1024; its output stays in the L2 cache
// for the epilogue.
constexpr std::int64_t kBlockRows = 256, kBlockColumns = 768;
// Below, a block costs more in packing and calls than it gains in parallelism.
constexpr std::int64_t kLeastRows = 64, kLeastColumns = 128;
// Enough for a few threads to share evenly.
constexpr std::int64_t kEnoughBlocks = 8;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// oneDNN of Debian runs its loops on OpenMP threads, and how it cuts them depends on how many the
// calling thread may use. The setting belongs to the thread. It is looked up at run time because
// the runtime is oneDNN's choice, not ours.
void UseOneOpenMpThread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

}  // namespace

MatmulBlocks CutMatmul(std::int64_t m, std::int64_t n, std::int64_t) {
  std::int64_t down = CeilDiv(m, kBlockRows), across = CeilDiv(n, kBlockColumns);
  while (down * across < kEnoughBlocks) {
    const bool can_down = CeilDiv(m, 2 * down) >= kLeastRows,
               can_across = CeilDiv(n, 2 * across) >= kLeastColumns;
    if (!can_down && !can_across) break;
    // The squarer block reads less for what it computes.
    if (can_down && (!can_across || m / down >= n / across)) {
      down *= 2;
    } else {
      across *= 2;
    }
  }
  // An even share for 2 and 4 threads, if that leaves blocks of a decent size.
  while (down * across % 4 != 0 && CeilDiv(m, down + 1) >= kLeastRows) ++down;
  MatmulBlocks blocks;
  blocks.rows = CeilDiv(CeilDiv(m, down), 16) * 16;
  blocks.columns = CeilDiv(CeilDiv(n, across), 16) * 16;
  blocks.per_row = CeilDiv(n, blocks.columns);
  blocks.count = CeilDiv(m, blocks.rows) * blocks.per_row;
  return blocks;
}

absl::Status RunMatmulBlock(const Matmul& op, const MatmulBlocks& blocks, std::int64_t block,
                            const Kernels& kernels, std::vector<float>& scratch) {
  UseOneOpenMpThread();
  const std::int64_t row = block / blocks.per_row * blocks.rows,
                     column = block % blocks.per_row * blocks.columns;
  const std::int64_t rows = std::min(blocks.rows, op.m - row),
                     columns = std::min(blocks.columns, op.n - column);
  std::int64_t a_stride = op.a_transposed ? op.m : op.k;
  const float* a = op.a + (op.a_transposed ? row : row * a_stride);
  if (op.a_transposed && a_stride % 1024 == 0) {
    // Rows that are a multiple of 4 KiB apart compete for the same cache sets; oneDNN then reads
    // them a third slower.
    scratch.resize(std::max<std::size_t>(scratch.size(), static_cast<std::size_t>(op.k * rows)));
    kernels.pack(a, a_stride, op.k, rows, scratch.data());
    a = scratch.data();
    a_stride = rows;
  }
  const std::int64_t b_stride = op.b_transposed ? op.k : op.n;
  const float* b = op.b + (op.b_transposed ? column * b_stride : column);
  float* c = op.c + row * op.n + column;
  const bool accumulate = op.addend == op.c;
  const dnnl_status_t status =
      dnnl_sgemm(op.a_transposed ? 'T' : 'N', op.b_transposed ? 'T' : 'N', rows, columns, op.k,
                 1.0F, a, a_stride, b, b_stride, accumulate ? 1.0F : 0.0F, c, op.n);
  if (status != dnnl_success) {
    return absl::InternalError(absl::StrCat("oneDNN matmul of ", op.m, " x ", op.n, " x ", op.k,
                                            " failed with status ", static_cast<int>(status)));
  }
  const float* bias = op.bias != nullptr ? op.bias + column : nullptr;
  const float* addend =
      op.addend != nullptr && !accumulate ? op.addend + row * op.n + column : nullptr;
  if (bias != nullptr || addend != nullptr) {
    kernels.epilogue(
        {.c = c, .bias = bias, .addend = addend, .rows = rows, .columns = columns, .stride = op.n});
  }
  return absl::OkStatus();
}

}  // namespace takt::backend
