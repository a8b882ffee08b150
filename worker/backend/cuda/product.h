// SPDX-License-Identifier: Apache-2.0
// A product of matrices as its kernel is chosen: what the choice hangs on, and its name in a kernel
// plan. Needs no device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "worker/backend/ops.h"

namespace takt::backend::cuda {

enum class Addend : std::uint8_t {
  kNone,
  kOutput,  // c += a b
  kOther,
};

// c[m,n] = a b (+ bias) (+ addend), all row-major, c and addend dense.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0;  // elements between stored rows
  bool a_transposed = false, b_transposed = false;
  bool bf16 = false;  // a and b; f32 else
  bool tf32 = false;  // operands in f32 may lose their last 13 bits
  bool bias = false;
  Addend addend = Addend::kNone;
  // Of all pointers, in bytes, up to what any kernel asks for. The same wherever a tensor lies,
  // since tensors start on cache lines: so no plan hangs on the layout of memory.
  int alignment = 0;

  bool operator==(const ProductShape&) const = default;
  template <class H>
  friend H AbslHashValue(H h, const ProductShape& s) {
    return H::combine(std::move(h), s.m, s.n, s.k, s.a_stride, s.b_stride, s.a_transposed,
                      s.b_transposed, s.bf16, s.tf32, s.bias, s.addend, s.alignment);
  }
};

// "matmul 2048x768x3072 bf16 a:3072 b^T:3072 +bias +addend aligned 16"; +c: it adds to c itself.
std::string ToString(const ProductShape& shape);

struct Product {
  ProductShape shape;
  const void* a = nullptr;
  const void* b = nullptr;
  float* c = nullptr;
  const float* bias = nullptr;
  const float* addend = nullptr;
};

Product ProductOf(const Matmul& op, bool tf32);

// An operand in bf16 where a product reads it.
struct RoundedOperand {
  const Bf16* data = nullptr;
  std::int64_t stride = 0;  // elements between rows
};
Product ProductOf(const MatmulBf16& op, const RoundedOperand& a);
Product ProductOf(const MatmulTransposedBf16& op, const RoundedOperand& a, const RoundedOperand& b);

}  // namespace takt::backend::cuda
