// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/product.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

const char* AddendText(Addend addend) {
  switch (addend) {
    case Addend::kNone:
      return "";
    case Addend::kOutput:
      return " +c";
    case Addend::kOther:
      return " +addend";
  }
  return "";
}

int CommonAlignment(const Product& product) {
  constexpr std::uintptr_t kMost = 16;
  std::uintptr_t bits = kMost;
  for (const void* pointer : std::initializer_list<const void*>{product.a, product.b, product.c,
                                                                product.bias, product.addend}) {
    bits |= reinterpret_cast<std::uintptr_t>(pointer);
  }
  return static_cast<int>(bits & -bits);
}

Product Completed(Product product) {
  product.shape.bias = product.bias != nullptr;
  product.shape.addend = product.addend == nullptr     ? Addend::kNone
                         : product.addend == product.c ? Addend::kOutput
                                                       : Addend::kOther;
  product.shape.alignment = CommonAlignment(product);
  return product;
}

}  // namespace

std::string ToString(const ProductShape& s) {
  return absl::StrCat("matmul ", s.m, "x", s.n, "x", s.k,
                      s.bf16   ? " bf16"
                      : s.tf32 ? " tf32"
                               : " f32",
                      s.a_transposed ? " a^T:" : " a:", s.a_stride,
                      s.b_transposed ? " b^T:" : " b:", s.b_stride, s.bias ? " +bias" : "",
                      AddendText(s.addend), " aligned ", s.alignment);
}

Product ProductOf(const Matmul& op, bool tf32) {
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = op.k,
                              .a_stride = op.a_transposed ? op.m : op.k,
                              .b_stride = op.b_transposed ? op.k : op.n,
                              .a_transposed = op.a_transposed,
                              .b_transposed = op.b_transposed,
                              .tf32 = tf32},
                    .a = op.a,
                    .b = op.b,
                    .c = op.c,
                    .bias = op.bias,
                    .addend = op.addend});
}

Product ProductOf(const MatmulBf16& op, const RoundedOperand& a) {
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = op.k,
                              .a_stride = a.stride,
                              .b_stride = PackedBf16Stride(op.n),
                              .bf16 = true},
                    .a = a.data,
                    .b = op.b,
                    .c = op.c.f32,
                    .bias = op.bias,
                    .addend = op.addend});
}

Product ProductOf(const MatmulTransposedBf16& op, const RoundedOperand& a,
                  const RoundedOperand& b) {
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = op.k,
                              .a_stride = a.stride,
                              .b_stride = b.stride,
                              .a_transposed = true,
                              .bf16 = true},
                    .a = a.data,
                    .b = b.data,
                    .c = op.c,
                    .addend = op.accumulate ? op.c : nullptr});
}

}  // namespace takt::backend::cuda
