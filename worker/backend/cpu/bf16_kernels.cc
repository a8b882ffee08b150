// SPDX-License-Identifier: Apache-2.0
// Converts f32 to bf16: row by row, or into the panels that bf16_gemm.h describes.
#include <utility>

#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

constexpr std::int64_t kPanelColumns = 64, kPanelDepth = 32;

// Stores a panel's two rows `even` and `odd`, interleaved, from column `column` on.
inline void StorePair(Bf16* pair, std::int64_t column, Vec even, Vec odd) {
  const IntVec both = LowerHalf(Rounded(even)) | UpperHalf(Rounded(odd));
  __builtin_memcpy(pair + 2 * column, &both, sizeof both);
}

// Pairs of bf16, two in an element. A vector has as many elements as rows that are transposed at
// once.
typedef std::int64_t PairVec __attribute__((vector_size(4 * kWidth)));
constexpr int kPairs = kWidth / 2;

// Rows i and i + kHalf of a square of elements exchange what lies beyond the diagonal of each block
// of 2 * kHalf.
template <int kHalf, int... kLane>
inline void Exchange(PairVec& upper, PairVec& lower, std::integer_sequence<int, kLane...>) {
  const PairVec a = upper, b = lower;
  upper = __builtin_shufflevector(a, b, ((kLane & kHalf) == 0 ? kLane : kPairs + kLane - kHalf)...);
  lower = __builtin_shufflevector(a, b, ((kLane & kHalf) == 0 ? kLane + kHalf : kPairs + kLane)...);
}

// Transposes the square by exchanging halves of halves.
template <int kHalf = kPairs / 2>
inline void Transpose(PairVec (&rows)[kPairs]) {
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    if ((i & kHalf) == 0) {
      Exchange<kHalf>(rows[i], rows[i + kHalf], std::make_integer_sequence<int, kPairs>());
    }
  }
  if constexpr (kHalf > 1) Transpose<kHalf / 2>(rows);
}

inline Vec LoadOrZero(const float* p, std::int64_t n) { return n <= 0 ? Vec{} : LoadN(p, n); }

// Packs a `b` stored [k,n]: rows of the panel are rows of b.
void PackPlain(const PackBf16& op, std::int64_t first, std::int64_t depth, Bf16* panel) {
  for (std::int64_t k = 0; k < depth; k += 2) {
    for (std::int64_t i = 0; i < kPanelColumns; i += kWidth) {
      const std::int64_t n = op.n - (first + i);
      const float* even = op.b + k * op.n + first + i;
      StorePair(panel + k * kPanelColumns, i, LoadOrZero(even, k < op.k ? n : 0),
                LoadOrZero(even + op.n, k + 1 < op.k ? n : 0));
    }
  }
}

// Packs a `b` stored [n,k]: rows of b are columns of the panel. It takes kWidth of them at a time,
// two in one vector of pairs, and transposes them into kPairs pairs of rows.
void PackTransposedB(const PackBf16& op, std::int64_t first, std::int64_t depth, Bf16* panel) {
  for (std::int64_t k = 0; k < depth; k += kWidth) {
    for (std::int64_t begin = 0; begin < kPanelColumns; begin += kWidth) {
      const auto pairs_of = [&](std::int64_t column) {
        const bool inside = first + column < op.n;
        const Vec v = LoadOrZero(op.b + (first + column) * op.k + k, inside ? op.k - k : 0);
        const PairVec halves = reinterpret_cast<PairVec>(LowerHalf(Rounded(v)));
        return (halves | halves >> 16) & 0xffffffff;
      };
      PairVec rows[kPairs];
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        rows[i] = pairs_of(begin + 2 * i) | pairs_of(begin + 2 * i + 1) << 32;
      }
      Transpose(rows);
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        Bf16* pair = panel + (k + 2 * i) * kPanelColumns;
        __builtin_memcpy(pair + 2 * begin, &rows[i], sizeof rows[i]);
      }
    }
  }
}

}  // namespace

void RoundBf16(const float* input, Bf16* rounded, Range elements) {
  for (std::int64_t i = elements.begin; i < elements.end; i += kWidth) {
    const std::int64_t n = elements.end - i;
    StoreN(rounded + i, LoadN(input + i, n), n);
  }
}

void PackBf16Panels(const PackBf16& op, Range panels) {
  const std::int64_t depth = RoundUp(op.k, kPanelDepth);
  for (std::int64_t p = panels.begin; p < panels.end; ++p) {
    Bf16* panel = op.packed + p * depth * kPanelColumns;
    (op.transposed ? PackTransposedB : PackPlain)(op, p * kPanelColumns, depth, panel);
  }
}

}  // namespace takt::backend::TAKT_ISA
