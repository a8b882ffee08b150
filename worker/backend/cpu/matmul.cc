// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/matmul.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

// Blocks of these sizes keep oneDNN within a few per cent of its speed on the whole matmul
// (takt-bench kernels measures it).
constexpr BlockLimits kPlain = {512, 768, 64, 128};
// Transposing a block of b for oneDNN's kernel is worth it only for many rows.
constexpr BlockLimits kTransposedB = {2048, 768, 128, 64};
// With a transposed, k is the number of rows of a microbatch and so is large. Blocks are wide, and
// k is cut into parts, of which that of a fits in the L2 cache.
constexpr BlockLimits kTransposedA = {192, 1536, 64, 128};
constexpr std::int64_t kPartDepth = 512;
// Columns of a part of b that is packed. The padding keeps its rows off multiples of 4 KiB.
constexpr std::int64_t kPartColumns = 768, kPadding = 16;
constexpr std::int64_t kPageFloats = 4096 / sizeof(float);
// Below so many rows, packing b takes longer than reading it slowly.
constexpr std::int64_t kFewRows = 64;
// This many blocks are enough for a few threads to share evenly. Small matmuls make do with fewer,
// larger ones.
constexpr std::int64_t kEnoughBlocks = 8, kFewBlocks = 4;
constexpr double kSmallBlockFlops = 32e6;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t RoundUp(std::int64_t a, std::int64_t unit) { return CeilDiv(a, unit) * unit; }

}  // namespace

// It is looked up at run time because oneDNN chooses the OpenMP runtime, not we.
void UseOneOpenMpThread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

MatmulBlocks CutMatmul(const Matmul& op) {
  return CutProduct(op.m, op.n, op.k,
                    op.a_transposed   ? kTransposedA
                    : op.b_transposed ? kTransposedB
                                      : kPlain);
}

MatmulBlocks CutProduct(std::int64_t m, std::int64_t n, std::int64_t k, const BlockLimits& limits) {
  std::int64_t down = CeilDiv(m, limits.rows), across = CeilDiv(n, limits.columns);
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto enough = [&] {
    const std::int64_t blocks = down * across;
    return blocks >= kEnoughBlocks ||
           (blocks >= kFewBlocks && flops / static_cast<double>(blocks) < kSmallBlockFlops);
  };
  while (!enough()) {
    // The side that is further from its least size is halved.
    const std::int64_t row_slack = CeilDiv(m, 2 * down) / limits.least_rows;
    const std::int64_t column_slack = CeilDiv(n, 2 * across) / limits.least_columns;
    if (row_slack == 0 && column_slack == 0) break;
    (row_slack > column_slack ? down : across) *= 2;
  }
  // Gives 2 and 4 threads an even share if that leaves blocks of a decent size.
  while (down * across % 4 != 0 && CeilDiv(m, down + 1) >= limits.least_rows) ++down;
  MatmulBlocks blocks;
  blocks.rows = RoundUp(CeilDiv(m, down), 16);
  blocks.columns = RoundUp(CeilDiv(n, across), limits.column_unit);
  blocks.per_row = CeilDiv(n, blocks.columns);
  blocks.count = CeilDiv(m, blocks.rows) * blocks.per_row;
  return blocks;
}

namespace {

// One oneDNN call that computes c (+)= a b. Strides are those of the stored matrices.
struct Gemm {
  bool a_transposed, b_transposed;
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_stride;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};

absl::Status RunGemm(const Gemm& g) {
  UseOneOpenMpThread();
  const dnnl_status_t status =
      dnnl_sgemm(g.a_transposed ? 'T' : 'N', g.b_transposed ? 'T' : 'N', g.m, g.n, g.k, 1.0F, g.a,
                 g.a_stride, g.b, g.b_stride, g.accumulate ? 1.0F : 0.0F, g.c, g.c_stride);
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN matmul of ", g.m, " x ", g.n, " x ", g.k,
                                          " failed with status ", static_cast<int>(status)));
}

// Returns whether oneDNN's AVX2 kernels do not pack b: copying it is too much work for a result
// that has few rows or columns. (nocopy_checker_avx2 in its sources.)
bool ReadsUnpackedB(const Gemm& g) {
  constexpr double kFewElements = 0.0038;
  return 1.0 / static_cast<double>(g.m) + 1.0 / static_cast<double>(g.n) >= kFewElements;
}

// With AVX2, unpacked rows of b that are multiples of 4 KiB apart are read at half the speed.
// Weight gradients, whose k is in parts anyway, are no slower with other rows, and most gain.
// Other products are cut into parts only where that changes no sum: those kernels begin a new one
// after each kSumDepth elements of k, and halve what is left where that is between one and two.
bool NeedsPackedB(const Gemm& g, const Kernels& kernels) {
  constexpr std::int64_t kSumDepth = 256;
  return MultipliesWithAvx2(kernels) && !g.b_transposed && g.m >= kFewRows && ReadsUnpackedB(g) &&
         (g.a_transposed || (g.b_stride % kPageFloats == 0 && g.k % kSumDepth == 0));
}

// Multiplies parts of k, for which it packs a if that is stored as [k,m], and b if pack_b: in
// unpacked form, rows that are a multiple of 4 KiB apart compete for the same cache sets, and
// oneDNN reads them more slowly.
absl::Status RunInParts(const Gemm& all, bool pack_b, const Kernels& kernels,
                        std::vector<float>& scratch) {
  const std::int64_t parts = pack_b ? CeilDiv(all.n, kPartColumns) : 1;
  const std::int64_t columns = RoundUp(CeilDiv(all.n, parts), 16);
  const std::int64_t b_stride = columns + kPadding;
  const std::int64_t a_size = all.a_transposed ? kPartDepth * all.m : 0;
  scratch.resize(std::max(scratch.size(),
                          static_cast<std::size_t>(a_size + (pack_b ? kPartDepth * b_stride : 0))));
  float* const packed_b = scratch.data() + a_size;
  Gemm g = all;
  for (std::int64_t first = 0; first < all.k; first += kPartDepth) {
    g.k = std::min(kPartDepth, all.k - first);
    g.a = all.a + first * (all.a_transposed ? all.a_stride : 1);
    if (all.a_transposed) {
      kernels.pack(g.a, all.a_stride, g.k, g.m, scratch.data(), g.m);
      g.a = scratch.data();
      g.a_stride = g.m;
    }
    for (std::int64_t column = 0; column < all.n; column += columns) {
      g.n = std::min(columns, all.n - column);
      g.b = all.b +
            (all.b_transposed ? column * all.b_stride + first : first * all.b_stride + column);
      g.c = all.c + column;
      if (pack_b) {
        kernels.pack(g.b, all.b_stride, g.k, g.n, packed_b, b_stride);
        g.b = packed_b;
        g.b_stride = b_stride;
      }
      RETURN_IF_ERROR(RunGemm(g));
    }
    g.accumulate = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMatmulBlock(const Matmul& op, const MatmulBlocks& blocks, std::int64_t block,
                            const Kernels& kernels, std::vector<float>& scratch) {
  const std::int64_t row = block / blocks.per_row * blocks.rows,
                     column = block % blocks.per_row * blocks.columns;
  const std::int64_t rows = std::min(blocks.rows, op.m - row),
                     columns = std::min(blocks.columns, op.n - column);
  const bool accumulate = op.addend == op.c;
  float* c = op.c + row * op.n + column;
  const Gemm gemm = {.a_transposed = op.a_transposed,
                     .b_transposed = op.b_transposed,
                     .m = rows,
                     .n = columns,
                     .k = op.k,
                     .a = op.a + (op.a_transposed ? row : row * op.k),
                     .a_stride = op.a_transposed ? op.m : op.k,
                     .b = op.b + (op.b_transposed ? column * op.k : column),
                     .b_stride = op.b_transposed ? op.k : op.n,
                     .c = c,
                     .c_stride = op.n,
                     .accumulate = accumulate};
  const bool pack_b = NeedsPackedB(gemm, kernels);
  RETURN_IF_ERROR(op.a_transposed || pack_b ? RunInParts(gemm, pack_b, kernels, scratch)
                                            : RunGemm(gemm));
  const float* bias = op.bias != nullptr ? op.bias + column : nullptr;
  const float* addend =
      op.addend != nullptr && !accumulate ? op.addend + row * op.n + column : nullptr;
  if (bias != nullptr || addend != nullptr) {
    kernels.epilogue({.product = c,
                      .product_stride = op.n,
                      .c = c,
                      .bias = bias,
                      .addend = addend,
                      .rows = rows,
                      .columns = columns,
                      .stride = op.n});
  }
  return absl::OkStatus();
}

}  // namespace takt::backend
