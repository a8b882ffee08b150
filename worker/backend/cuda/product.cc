// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/product.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr std::uintptr_t kMostAlignment = 16;
constexpr std::int64_t kPerVector = 8;  // of bf16, in as many bytes

std::string Fp8Text(const char* before, bool e5m2, Fp8Scales scales) {
  const char* const of_scales = scales == Fp8Scales::kOne       ? ""
                                : scales == Fp8Scales::kVectors ? ":128"
                                                                : ":128x128";
  return absl::StrCat(before, e5m2 ? "e5m2" : "e4m3", of_scales);
}

std::string TypeText(const ProductShape& s) {
  if (s.fp8)
    return absl::StrCat(Fp8Text(" ", s.e5m2_a, s.a_scales), Fp8Text("*", s.e5m2_b, s.b_scales));
  return s.bf16 ? " bf16" : s.tf32 ? " tf32" : " f32";
}

const char* EpilogueText(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "";
    case Epilogue::kBias:
      return " bias";
    case Epilogue::kGelu:
      return " gelu";
    case Epilogue::kBiasGelu:
      return " bias gelu";
    case Epilogue::kGeluGrad:
      return " gelu'";
    case Epilogue::kColumnSums:
      return " sums";
  }
  return "";
}

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

std::uintptr_t Address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

int CommonAlignment(const Product& p) {
  std::uintptr_t bits = kMostAlignment;
  for (const void* pointer : std::initializer_list<const void*>{p.a, p.b, p.c, p.bias, p.addend,
                                                                p.inner, p.column_sums}) {
    bits |= Address(pointer);
  }
  return static_cast<int>(bits & -bits);
}

Product Completed(Product product) {
  product.shape.addend = product.addend == nullptr     ? Addend::kNone
                         : product.addend == product.c ? Addend::kOutput
                                                       : Addend::kOther;
  product.shape.alignment = CommonAlignment(product);
  return product;
}

Epilogue EpilogueOf(const MatmulBf16& op) {
  switch (op.activation) {
    case Activation::kNone:
      return op.bias != nullptr ? Epilogue::kBias : Epilogue::kNone;
    case Activation::kGelu:
      return op.bias != nullptr ? Epilogue::kBiasGelu : Epilogue::kGelu;
    case Activation::kGeluGrad:
      return Epilogue::kGeluGrad;
  }
  return Epilogue::kNone;
}

const void* AddendOf(const MatmulBf16& op) {
  if (op.addend.bf16 != nullptr) return op.addend.bf16;
  return op.addend.f32;
}

std::int64_t StrideOr(std::int64_t stride, std::int64_t columns) {
  return stride != 0 ? stride : columns;
}

}  // namespace

std::string ToString(const ProductShape& s) {
  return absl::StrCat(
      "matmul ", s.m, "x", s.n, "x", s.k, TypeText(s), s.a_transposed ? " a^T:" : " a:", s.a_stride,
      s.b_transposed ? " b^T:" : " b:", s.b_stride, s.bf16_c ? " -> bf16:" : " -> f32:", s.c_stride,
      EpilogueText(s.epilogue), AddendText(s.addend), " aligned ", s.alignment);
}

int SmTarget(int multiprocessors, int reserved) {
  if (reserved <= 0) return 0;
  return std::max(multiprocessors - reserved, multiprocessors / 2);
}

Product ProductOf(const Matmul& op, bool tf32) {
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = op.k,
                              .a_stride = op.a_transposed ? op.m : op.k,
                              .b_stride = op.b_transposed ? op.k : op.n,
                              .c_stride = op.n,
                              .a_transposed = op.a_transposed,
                              .b_transposed = op.b_transposed,
                              .tf32 = tf32,
                              .epilogue = op.bias != nullptr ? Epilogue::kBias : Epilogue::kNone},
                    .a = op.a,
                    .b = op.b,
                    .c = op.c,
                    .bias = op.bias,
                    .addend = op.addend});
}

RoundedOperand WhereRounded(const Operand& operand, std::int64_t columns, std::int64_t stride) {
  const std::int64_t actual = StrideOr(stride, columns);
  const bool loads =
      actual == PackedBf16Stride(actual) && Address(operand.bf16) % kMostAlignment == 0;
  if (operand.bf16 != nullptr && loads) return {operand.bf16, actual};
  return {nullptr, PackedBf16Stride(columns)};
}

Product ProductOf(const MatmulBf16& op, const RoundedOperand& a) {
  const bool bf16_c = op.c.bf16 != nullptr;
  void* const c = bf16_c ? static_cast<void*>(op.c.bf16) : op.c.f32;
  const std::int64_t c_stride = StrideOr(op.c_stride, op.n), padded_n = PackedBf16Stride(op.n);
  const bool pads = EpilogueOf(op) == Epilogue::kNone && bf16_c && c_stride >= padded_n;
  const bool transposed = op.stored == StoredB::kTransposedRows;
  return Completed({.shape = {.m = op.m,
                              .n = pads ? padded_n : op.n,
                              .k = PackedBf16Stride(op.k),
                              .a_stride = a.stride,
                              .b_stride = PackedBf16Stride(transposed ? op.k : op.n),
                              .c_stride = c_stride,
                              .b_transposed = transposed,
                              .bf16 = true,
                              .bf16_c = bf16_c,
                              .epilogue = EpilogueOf(op)},
                    .a = a.data,
                    .b = op.b,
                    .c = c,
                    .bias = op.bias,
                    .rounded_bias = op.rounded_bias,
                    .addend = AddendOf(op),
                    .inner = op.inner});
}

Product ProductOf(const MatmulTransposedBf16& op, const RoundedOperand& a,
                  const RoundedOperand& b) {
  const bool sums = op.column_sums != nullptr && op.b.bf16 != nullptr;
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = op.k,
                              .a_stride = a.stride,
                              .b_stride = b.stride,
                              .c_stride = op.n,
                              .a_transposed = true,
                              .bf16 = true,
                              .epilogue = sums ? Epilogue::kColumnSums : Epilogue::kNone},
                    .a = a.data,
                    .b = b.data,
                    .c = op.c,
                    .addend = op.accumulate ? op.c : nullptr,
                    .column_sums = op.column_sums,
                    .sums_may_wait = op.sums_may_wait,
                    .summed = op.b,
                    .summed_rows = op.k});
}

Fp8Scales ScalesOf(const Fp8& fp8) {
  return fp8.scaling == Fp8Scaling::kBlock ? Fp8Scales::kVectors : Fp8Scales::kOne;
}

Product Fp8ProductOf(const MatmulBf16& op, const Fp8Codes& a) {
  const bool bf16_c = op.c.bf16 != nullptr;
  const bool blocks = op.a_fp8.scaling == Fp8Scaling::kBlock;
  const Fp8Scales b_scales = blocks ? Fp8Scales::kSquares : Fp8Scales::kOne;
  const PackedFp8 b = PackedFp8Of(op.b, op.k, op.n, b_scales);
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = a.stride,
                              .a_stride = a.stride,
                              .b_stride = a.stride,
                              .c_stride = StrideOr(op.c_stride, op.n),
                              .b_transposed = true,
                              .fp8 = true,
                              .e5m2_a = op.a_fp8.is_e5m2(),
                              .a_scales = ScalesOf(op.a_fp8),
                              .b_scales = b_scales,
                              .bf16_c = bf16_c,
                              .epilogue = EpilogueOf(op)},
                    .a = a.codes,
                    .b = b.codes,
                    .c = bf16_c ? static_cast<void*>(op.c.bf16) : op.c.f32,
                    .bias = op.bias,
                    .rounded_bias = op.rounded_bias,
                    .addend = AddendOf(op),
                    .inner = op.inner,
                    .a_inverse_scales = a.inverse_scales,
                    .b_inverse_scales = b.inverse_scales});
}

Product Fp8ProductOf(const MatmulTransposedBf16& op, const Fp8Codes& a, const Fp8Codes& b) {
  return Completed({.shape = {.m = op.m,
                              .n = op.n,
                              .k = a.stride,
                              .a_stride = a.stride,
                              .b_stride = b.stride,
                              .c_stride = op.n,
                              .b_transposed = true,
                              .fp8 = true,
                              .e5m2_a = op.a_fp8.is_e5m2(),
                              .e5m2_b = op.b_fp8.is_e5m2(),
                              .a_scales = ScalesOf(op.a_fp8),
                              .b_scales = ScalesOf(op.b_fp8)},
                    .a = a.codes,
                    .b = b.codes,
                    .c = op.c,
                    .addend = op.accumulate ? op.c : nullptr,
                    .column_sums = op.column_sums,
                    .sums_may_wait = op.sums_may_wait,
                    .summed = op.b,
                    .summed_rows = op.k,
                    .a_inverse_scales = a.inverse_scales,
                    .b_inverse_scales = b.inverse_scales});
}

std::vector<Product> CutToVectors(const Product& product) {
  const std::int64_t m = product.shape.m, most_m = m - m % kPerVector;
  if (most_m == m || most_m == 0) return {product};
  Product most = product, rest = product;
  most.shape.m = most_m;
  rest.shape.m = m - most_m;
  if (product.a != nullptr) rest.a = static_cast<const Bf16*>(product.a) + most_m;
  rest.c = static_cast<float*>(product.c) + most_m * product.shape.c_stride;
  if (product.addend != nullptr) rest.addend = static_cast<const float*>(rest.c);
  rest.shape.epilogue = Epilogue::kNone;
  rest.column_sums = nullptr;
  return {most, Completed(rest)};
}

}  // namespace takt::backend::cuda
