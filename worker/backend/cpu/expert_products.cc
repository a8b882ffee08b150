// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/expert_products.h"

#include <algorithm>

#include "common/base/status.h"

namespace takt::backend {
namespace {

constexpr std::int64_t kElementsPerPiece = 16384;

Range RowsOf(const ExpertRows& rows, std::int64_t expert) {
  return {rows.offsets[expert], rows.offsets[expert + 1]};
}

Operand From(const Operand& tensor, std::int64_t offset) {
  if (tensor.bf16 != nullptr) return tensor.bf16 + offset;
  return tensor.f32 + offset;
}

// Makes room and returns it. The memory only grows.
float* Room(std::vector<float>& memory, std::int64_t count) {
  memory.resize(std::max(memory.size(), static_cast<std::size_t>(count)));
  return memory.data();
}

// Calls body(first, count) for parts of so many rows. oneDNN generates a kernel for each shape in
// bf16 and keeps it. Experts have any number of rows, so these are multiplied by parts of few
// sizes: powers of two, the largest of them as often as it fits.
template <class Body>
absl::Status ByPowersOfTwo(std::int64_t rows, const Body& body) {
  constexpr std::int64_t kMost = 256;
  std::int64_t first = 0;
  for (std::int64_t part = kMost; part > 0; part /= 2) {
    for (; rows - first >= part; first += part) RETURN_IF_ERROR(body(first, part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertProducts::Run(const ExpertMatmul& op, InF32 in_f32) {
  const Range range = RowsOf(op.rows, op.expert);
  const std::int64_t rows = range.end - range.begin;
  if (rows == 0) return absl::OkStatus();
  if (!op.to_tokens) {
    const float* const a = Gather(op.rows, range, op.a.f32, op.k);
    return Multiply(op, rows, a, op.c + range.begin * op.n, in_f32);
  }
  float* const products = Room(products_, rows * op.n);
  RETURN_IF_ERROR(Multiply(op, rows, From(op.a, range.begin * op.k), products, in_f32));
  // The rows of one expert are of different tokens.
  ForRows(op.rows, range, op.n, [&](std::int64_t row, std::int64_t token) {
    float* const c = op.c + token * op.n;
    kernels_.add({.a = c, .b = products + row * op.n, .output = c, .count = op.n}, {0, op.n});
  });
  return absl::OkStatus();
}

absl::Status ExpertProducts::Multiply(const ExpertMatmul& op, std::int64_t rows, const Operand& a,
                                      float* c, InF32 in_f32) {
  if (op.packed == nullptr) {
    return in_f32({.a = a.f32,
                   .b = op.b,
                   .c = c,
                   .b_transposed = op.b_transposed,
                   .m = rows,
                   .n = op.n,
                   .k = op.k});
  }
  return ByPowersOfTwo(rows, [&](std::int64_t first, std::int64_t count) {
    return bf16_.Run(MatmulBf16{.a = From(a, first * op.k),
                                .b = op.packed,
                                .c = c + first * op.n,
                                .m = count,
                                .n = op.n,
                                .k = op.k});
  });
}

absl::Status ExpertProducts::Run(const ExpertMatmulTransposed& op, InF32 in_f32) {
  const Range range = RowsOf(op.rows, op.expert);
  const std::int64_t rows = range.end - range.begin;
  if (rows == 0) {
    if (!op.accumulate) std::fill_n(op.c, op.m * op.n, 0.0F);
    return absl::OkStatus();
  }
  const Operand a = op.a_by_token ? Operand(Gather(op.rows, range, op.a.f32, op.m))
                                  : From(op.a, range.begin * op.m);
  const Operand b = op.a_by_token ? From(op.b, range.begin * op.n)
                                  : Operand(Gather(op.rows, range, op.b.f32, op.n));
  if (!op.in_bf16) {
    return in_f32({.a = a.f32,
                   .b = b.f32,
                   .c = op.c,
                   .addend = op.accumulate ? op.c : nullptr,
                   .a_transposed = true,
                   .m = op.m,
                   .n = op.n,
                   .k = rows});
  }
  return ByPowersOfTwo(rows, [&](std::int64_t first, std::int64_t count) {
    return bf16_.Run(MatmulTransposedBf16{.a = From(a, first * op.m),
                                          .b = From(b, first * op.n),
                                          .c = op.c,
                                          .accumulate = op.accumulate || first > 0,
                                          .m = op.m,
                                          .n = op.n,
                                          .k = count});
  });
}

template <class Body>
void ExpertProducts::ForRows(const ExpertRows& rows, Range range, std::int64_t columns,
                             const Body& body) {
  const std::int64_t count = range.end - range.begin;
  const std::int64_t piece = std::max<std::int64_t>(1, kElementsPerPiece / columns);
  team_.ParallelFor((count + piece - 1) / piece, [&](std::int64_t i, int) {
    const std::int64_t end = std::min(count, (i + 1) * piece);
    for (std::int64_t row = i * piece; row < end; ++row)
      body(row, rows.pairs[range.begin + row] / rows.chosen);
  });
}

const float* ExpertProducts::Gather(const ExpertRows& rows, Range range, const float* by_token,
                                    std::int64_t columns) {
  float* const gathered = Room(gathered_, (range.end - range.begin) * columns);
  ForRows(rows, range, columns, [&](std::int64_t row, std::int64_t token) {
    std::copy_n(by_token + token * columns, columns, gathered + row * columns);
  });
  return gathered;
}

}  // namespace takt::backend
