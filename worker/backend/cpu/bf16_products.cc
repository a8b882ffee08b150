// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/bf16_products.h"

#include <algorithm>

#include "common/base/status.h"

namespace takt::backend {
namespace {

// Blocks of these sizes keep oneDNN within a few per cent of its speed on the whole product, on
// processors with AVX-512 BF16.
constexpr BlockLimits kPacked = {256, 768, 64, 128, kBf16PanelColumns};
constexpr BlockLimits kTransposed = {384, 1536, 64, 128, kBf16PanelColumns};
constexpr std::int64_t kElementsPerPiece = 65536;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Bf16Products::Bf16Products(ThreadTeam& team, const Kernels& kernels, Fp8Counters* fp8_counters)
    : team_(team), kernels_(kernels), fp8_(team, kernels, fp8_counters) {
  for (int i = 0; i < team.size(); ++i)
    threads_.push_back({.gemm = CreateBf16Gemm(MultipliesBf16(kernels)), .tile = {}});
}

const float* Bf16Products::InFp8(const PackBf16& op) {
  if (op.fp8 == Fp8Scaling::kNone) return op.b;
  weights_.resize(std::max(weights_.size(), static_cast<std::size_t>(op.k * op.n)));
  const std::int64_t columns = op.transposed ? op.k : op.n;
  fp8_.Round({.input = op.b,
              .output = weights_.data(),
              .rows = op.transposed ? op.n : op.k,
              .columns = columns,
              .stride = columns,
              .fp8 = {op.fp8, Fp8Operand::kWeight},
              .block_rows = kFp8BlockSize,
              .block_columns = kFp8BlockSize});
  return weights_.data();
}

PackBf16 Bf16Products::PackOf(const MatmulBf16& op) {
  const auto count = static_cast<std::size_t>(op.k * op.n);
  weights_.resize(std::max(weights_.size(), count));
  std::transform(op.b, op.b + count, weights_.begin(), ToFloat);
  const std::int64_t panels = CeilDiv(op.n, kBf16PanelColumns);
  const std::int64_t depth = CeilDiv(op.k, kBf16PanelDepth) * kBf16PanelDepth;
  packed_.resize(
      std::max(packed_.size(), static_cast<std::size_t>(panels * kBf16PanelColumns * depth)));
  return {.b = weights_.data(),
          .transposed = op.stored == StoredB::kTransposedRows,
          .packed = packed_.data(),
          .k = op.k,
          .n = op.n};
}

absl::Status Bf16Products::Run(const MatmulBf16& op) {
  const Rows a = Rounded(
      {.data = op.a, .fp8 = op.a_fp8, .rows = op.m, .columns = op.k, .stride = op.a_stride}, a_);
  const std::int64_t c_stride = op.c_stride == 0 ? op.n : op.c_stride;
  const std::int64_t depth = CeilDiv(op.k, kBf16PanelDepth) * kBf16PanelDepth;
  const auto multiply = [&](std::int64_t row, std::int64_t column, std::int64_t rows,
                            std::int64_t columns, Thread& thread) {
    std::vector<float>& tile = thread.tile;
    tile.resize(std::max(tile.size(), static_cast<std::size_t>(rows * columns)));
    RETURN_IF_ERROR(thread.gemm->Run({.b_packed = true,
                                      .m = rows,
                                      .n = columns,
                                      .k = op.k,
                                      .a_stride = a.stride,
                                      .c_stride = columns},
                                     a.data + row * a.stride, op.b + column * depth, tile.data()));
    const std::int64_t at = row * c_stride + column;
    kernels_.epilogue({.product = tile.data(),
                       .product_stride = columns,
                       .c = op.c.f32 + at,
                       .bias = op.bias != nullptr ? op.bias + column : nullptr,
                       .addend = op.addend.f32 != nullptr ? op.addend.f32 + at : nullptr,
                       .rows = rows,
                       .columns = columns,
                       .stride = c_stride});
    return absl::OkStatus();
  };
  return ForBlocks(CutProduct(op.m, op.n, op.k, kPacked), op.m, op.n, multiply);
}

absl::Status Bf16Products::Run(const MatmulTransposedBf16& op) {
  const Rows a = Rounded({.data = op.a,
                          .fp8 = op.a_fp8,
                          .rows = op.k,
                          .columns = op.m,
                          .stride = op.a_stride,
                          .sums_rows = true},
                         a_);
  const Rows b = Rounded({.data = op.b,
                          .fp8 = op.b_fp8,
                          .rows = op.k,
                          .columns = op.n,
                          .stride = op.b_stride,
                          .sums_rows = true},
                         b_);
  const auto multiply = [&](std::int64_t row, std::int64_t column, std::int64_t rows,
                            std::int64_t columns, Thread& thread) {
    return thread.gemm->Run({.a_transposed = true,
                             .m = rows,
                             .n = columns,
                             .k = op.k,
                             .a_stride = a.stride,
                             .b_stride = b.stride,
                             .c_stride = op.n,
                             .accumulate = op.accumulate},
                            a.data + row, b.data + column, op.c + row * op.n + column);
  };
  return ForBlocks(CutProduct(op.m, op.n, op.k, kTransposed), op.m, op.n, multiply);
}

Bf16Products::Rows Bf16Products::Rounded(Source source, std::vector<Bf16>& scratch) {
  if (source.stride == 0) source.stride = source.columns;
  if (source.fp8.rounds()) {
    scratch.resize(
        std::max(scratch.size(), static_cast<std::size_t>(source.rows * source.columns)));
    fp8_.Round({.input = source.data,
                .output = scratch.data(),
                .rows = source.rows,
                .columns = source.columns,
                .stride = source.stride,
                .fp8 = source.fp8,
                .block_rows = source.sums_rows ? kFp8BlockSize : 1,
                .block_columns = source.sums_rows ? 1 : kFp8BlockSize});
    return {scratch.data(), source.columns};
  }
  // Where rows are multiplied by panels, oneDNN has fast kernels only for rows without gaps.
  if (!source.sums_rows && source.stride != source.columns) return WithoutGaps(source, scratch);
  if (source.data.bf16 != nullptr) return {source.data.bf16, source.stride};
  // The elements between rows are among them.
  const std::int64_t count = (source.rows - 1) * source.stride + source.columns;
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(count)));
  team_.ParallelFor(CeilDiv(count, kElementsPerPiece), [&](std::int64_t piece, int) {
    kernels_.round_bf16(
        source.data.f32, scratch.data(),
        {piece * kElementsPerPiece, std::min(count, (piece + 1) * kElementsPerPiece)});
  });
  return {scratch.data(), source.stride};
}

Bf16Products::Rows Bf16Products::WithoutGaps(const Source& source, std::vector<Bf16>& scratch) {
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(source.rows * source.columns)));
  team_.ParallelFor(source.rows, [&](std::int64_t row, int) {
    Bf16* const rounded = scratch.data() + row * source.columns;
    const std::int64_t first = row * source.stride;
    if (source.data.bf16 != nullptr) {
      std::copy_n(source.data.bf16 + first, source.columns, rounded);
    } else {
      kernels_.round_bf16(source.data.f32 + first, rounded, {0, source.columns});
    }
  });
  return {scratch.data(), source.columns};
}

template <class Body>
absl::Status Bf16Products::ForBlocks(const MatmulBlocks& blocks, std::int64_t m, std::int64_t n,
                                     const Body& body) {
  std::vector<absl::Status> errors(threads_.size());
  team_.ParallelFor(blocks.count, [&](std::int64_t block, int thread) {
    const std::int64_t row = block / blocks.per_row * blocks.rows;
    const std::int64_t column = block % blocks.per_row * blocks.columns;
    const auto t = static_cast<std::size_t>(thread);
    errors[t].Update(body(row, column, std::min(blocks.rows, m - row),
                          std::min(blocks.columns, n - column), threads_[t]));
  });
  for (const absl::Status& error : errors) RETURN_IF_ERROR(error);
  return absl::OkStatus();
}

}  // namespace takt::backend
