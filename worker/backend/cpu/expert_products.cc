// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/expert_products.h"

#include <algorithm>
#include <bit>
#include <cstddef>

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

// Calls body(part) for parts of the rows. In bf16 oneDNN generates a kernel for each shape and
// keeps it, and experts have any number of rows, so the last parts are powers of two.
template <class Body>
absl::Status ForParts(Range rows, bool in_bf16, const Body& body) {
  for (Range part{rows.begin, rows.begin}; part.end < rows.end; part.begin = part.end) {
    const std::int64_t most = std::min(rows.end - part.begin, ExpertProducts::kRowsPerPart);
    part.end += in_bf16
                    ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)))
                    : most;
    RETURN_IF_ERROR(body(part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertProducts::Run(const ExpertMatmul& op, InF32 in_f32) {
  for (std::int64_t e = 0; e < op.rows.experts; ++e) {
    RETURN_IF_ERROR(ForParts(RowsOf(op.rows, e), op.in_bf16(), [&](Range part) {
      return RunPart(op, op.matrices[static_cast<std::size_t>(e)], part, in_f32);
    }));
  }
  return absl::OkStatus();
}

absl::Status ExpertProducts::RunPart(const ExpertMatmul& op, const ExpertMatrix& matrix, Range part,
                                     InF32 in_f32) {
  const std::int64_t rows = part.end - part.begin;
  if (!op.to_tokens) {
    const float* const a = Gather(op.rows, part, op.a.f32, op.k);
    return Multiply(op, matrix, rows, a, op.c + part.begin * op.n, in_f32);
  }
  float* const products = Room(products_, rows * op.n);
  RETURN_IF_ERROR(Multiply(op, matrix, rows, From(op.a, part.begin * op.k), products, in_f32));
  AddToTokens(op.rows, part, op.n, products, op.c);
  return absl::OkStatus();
}

void ExpertProducts::Run(const PackTokens& op) {
  GatherTo(op.rows, {0, op.rows.count()}, op.by_token, op.columns, op.by_row);
}

void ExpertProducts::Run(const AddRowsToTokens& op) {
  for (std::int64_t e = 0; e < op.rows.experts; ++e) {
    const Range rows = RowsOf(op.rows, e);
    AddToTokens(op.rows, rows, op.columns, op.by_row + rows.begin * op.columns, op.by_token);
  }
}

absl::Status ExpertProducts::Multiply(const ExpertMatmul& op, const ExpertMatrix& matrix,
                                      std::int64_t rows, const Operand& a, float* c, InF32 in_f32) {
  if (matrix.packed != nullptr) {
    return bf16_.Run(
        MatmulBf16{.a = a, .b = matrix.packed, .c = c, .m = rows, .n = op.n, .k = op.k});
  }
  return in_f32({.a = a.f32,
                 .b = matrix.b,
                 .c = c,
                 .b_transposed = op.b_transposed,
                 .m = rows,
                 .n = op.n,
                 .k = op.k});
}

absl::Status ExpertProducts::Run(const ExpertMatmulTransposed& op, InF32 in_f32) {
  for (std::int64_t e = 0; e < op.rows.experts; ++e) {
    const Range rows = RowsOf(op.rows, e);
    float* const c = op.gradients[static_cast<std::size_t>(e)].c;
    if (rows.begin == rows.end && !op.accumulate) std::fill_n(c, op.m * op.n, 0.0F);
    RETURN_IF_ERROR(ForParts(rows, op.in_bf16, [&](Range part) {
      return RunPart(op, c, part, op.accumulate || part.begin > rows.begin, in_f32);
    }));
  }
  return absl::OkStatus();
}

absl::Status ExpertProducts::RunPart(const ExpertMatmulTransposed& op, float* c, Range part,
                                     bool accumulate, InF32 in_f32) {
  const Operand a = op.a_by_token ? Operand(Gather(op.rows, part, op.a.f32, op.m))
                                  : From(op.a, part.begin * op.m);
  const Operand b = op.a_by_token ? From(op.b, part.begin * op.n)
                                  : Operand(Gather(op.rows, part, op.b.f32, op.n));
  const std::int64_t rows = part.end - part.begin;
  if (op.in_bf16) {
    return bf16_.Run(MatmulTransposedBf16{
        .a = a, .b = b, .c = c, .accumulate = accumulate, .m = op.m, .n = op.n, .k = rows});
  }
  return in_f32({.a = a.f32,
                 .b = b.f32,
                 .c = c,
                 .addend = accumulate ? c : nullptr,
                 .a_transposed = true,
                 .m = op.m,
                 .n = op.n,
                 .k = rows});
}

template <class Body>
void ExpertProducts::ForRows(const ExpertRows& rows, Range part, std::int64_t columns,
                             const Body& body) {
  const std::int64_t count = part.end - part.begin;
  const std::int64_t piece = std::max<std::int64_t>(1, kElementsPerPiece / columns);
  team_.ParallelFor((count + piece - 1) / piece, [&](std::int64_t i, int) {
    const std::int64_t end = std::min(count, (i + 1) * piece);
    for (std::int64_t row = i * piece; row < end; ++row)
      body(row, rows.pairs[part.begin + row] / rows.chosen);
  });
}

void ExpertProducts::AddToTokens(const ExpertRows& rows, Range part, std::int64_t columns,
                                 const float* by_row, float* by_token) {
  ForRows(rows, part, columns, [&](std::int64_t row, std::int64_t token) {
    float* const sums = by_token + token * columns;
    kernels_.add({.a = sums, .b = by_row + row * columns, .output = sums, .count = columns},
                 {0, columns});
  });
}

void ExpertProducts::GatherTo(const ExpertRows& rows, Range part, const float* by_token,
                              std::int64_t columns, float* gathered) {
  ForRows(rows, part, columns, [&](std::int64_t row, std::int64_t token) {
    std::copy_n(by_token + token * columns, columns, gathered + row * columns);
  });
}

const float* ExpertProducts::Gather(const ExpertRows& rows, Range part, const float* by_token,
                                    std::int64_t columns) {
  float* const gathered = Room(gathered_, (part.end - part.begin) * columns);
  GatherTo(rows, part, by_token, columns, gathered);
  return gathered;
}

}  // namespace takt::backend
