// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/gemm.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"

namespace takt::backend::cuda {
namespace {

// The library requires that aux's columns are a multiple of this apart.
constexpr std::int64_t kAuxUnit = 8;

bool IsGelu(Epilogue e) { return e == Epilogue::kGelu || e == Epilogue::kBiasGelu; }

bool CanFuse(const ProductShape& s) {
  if (s.epilogue == Epilogue::kNone || s.fp8) return false;
  const bool has_inner = IsGelu(s.epilogue) || s.epilogue == Epilogue::kGeluGrad;
  return !has_inner || s.n % kAuxUnit == 0;
}

GemmEpilogue EpilogueOf(const ProductShape& s, bool fused) {
  switch (s.epilogue) {
    case Epilogue::kNone:
      return GemmEpilogue::kDefault;
    case Epilogue::kBias:
      return fused ? GemmEpilogue::kBias : GemmEpilogue::kDefault;
    case Epilogue::kGelu:
      return fused ? GemmEpilogue::kGeluAux : GemmEpilogue::kDefault;
    case Epilogue::kBiasGelu:
      if (s.fp8) return GemmEpilogue::kDefault;
      return fused ? GemmEpilogue::kGeluAuxBias : GemmEpilogue::kBias;
    case Epilogue::kGeluGrad:
      return fused ? GemmEpilogue::kDGelu : GemmEpilogue::kDefault;
    case Epilogue::kColumnSums:
      return fused ? GemmEpilogue::kBGradA : GemmEpilogue::kDefault;
  }
  return GemmEpilogue::kDefault;
}

bool HasAux(GemmEpilogue e) {
  return e == GemmEpilogue::kGeluAux || e == GemmEpilogue::kGeluAuxBias ||
         e == GemmEpilogue::kDGelu;
}

bool HasBias(GemmEpilogue e) { return e == GemmEpilogue::kBias || e == GemmEpilogue::kGeluAuxBias; }

GemmScales LibrarysName(Fp8Scales scales) {
  switch (scales) {
    case Fp8Scales::kOne:
      return GemmScales::kOne;
    case Fp8Scales::kVectors:
      return GemmScales::kVectors;
    case Fp8Scales::kSquares:
      return GemmScales::kSquares;
  }
  return GemmScales::kOne;
}

// Returns whether the product writes z, from which a kernel of ours then makes c.
bool WritesInner(const ProductShape& s, const Gemm& gemm) {
  return IsGelu(s.epilogue) && !HasAux(gemm.epilogue);
}

}  // namespace

bool Gemm::has_vector() const { return HasBias(epilogue) || epilogue == GemmEpilogue::kBGradA; }

Gemm GemmOf(const ProductShape& s, bool fused) {
  const auto operand = [&s](bool e5m2) {
    if (s.fp8) return e5m2 ? ElementType::kE5m2 : ElementType::kE4m3;
    return s.bf16 ? ElementType::kBf16 : ElementType::kF32;
  };
  const auto by_columns = [](ElementType type, std::int64_t rows, std::int64_t columns,
                             std::int64_t stride) {
    return GemmMatrix{.type = type, .rows = columns, .columns = rows, .stride = stride};
  };
  Gemm gemm{
      .a = by_columns(operand(s.e5m2_b), s.b_transposed ? s.n : s.k, s.b_transposed ? s.k : s.n,
                      s.b_stride),
      .b = by_columns(operand(s.e5m2_a), s.a_transposed ? s.k : s.m, s.a_transposed ? s.m : s.k,
                      s.a_stride),
      .d = by_columns(s.bf16_c ? ElementType::kBf16 : ElementType::kF32, s.m, s.n, s.c_stride),
      .a_transposed = s.b_transposed,
      .b_transposed = s.a_transposed,
      .tf32 = s.tf32,
      .has_scales = s.fp8,
      .a_scales = LibrarysName(s.b_scales),
      .b_scales = LibrarysName(s.a_scales),
      .epilogue = EpilogueOf(s, fused && CanFuse(s)),
      .alignment = s.alignment};
  if (HasAux(gemm.epilogue)) gemm.aux_stride = s.n;
  return gemm;
}

// A bias costs nothing. The other epilogues are as cheap in kernels for Hopper; older devices do
// them in a further pass over the output (as llm.c found: it fuses GELU from 9.0 on). Kernels that
// also sum along k save a pass over b, and are slow for some shapes (CUDALibrarySamples, issue 90),
// which only timings tell.
std::vector<bool> GemmVariants(const ProductShape& s, std::string_view compute_capability) {
  if (!CanFuse(s)) return {false};
  constexpr double kHopper = 9.0;
  double capability = 0;
  const bool hopper =
      absl::SimpleAtod(std::string(compute_capability), &capability) && capability >= kHopper;
  const bool fused_first = s.epilogue == Epilogue::kBias || hopper;
  return {fused_first, !fused_first};
}

std::uint32_t ReductionSchemes(const Gemm& gemm) {
  return gemm.d.type == ElementType::kF32 ? kReduceInComputeType | kReduceInOutputType
                                          : kReduceInComputeType;
}

GemmPointers PointersOf(const Product& p, const Gemm& gemm) {
  const bool adds = p.shape.addend != Addend::kNone;
  GemmPointers pointers{.a = p.b,
                        .b = p.a,
                        .d = WritesInner(p.shape, gemm) ? p.inner : p.c,
                        .aux = HasAux(gemm.epilogue) ? p.inner : nullptr,
                        .a_scales = p.b_inverse_scales,
                        .b_scales = p.a_inverse_scales,
                        .beta = adds ? 1.0F : 0.0F};
  pointers.c = adds ? p.addend : pointers.d;
  if (HasBias(gemm.epilogue)) {
    pointers.vector = gemm.d.type == ElementType::kF32 ? static_cast<const void*>(p.bias)
                                                       : static_cast<const void*>(p.rounded_bias);
  }
  if (gemm.epilogue == GemmEpilogue::kBGradA && !adds) pointers.vector = p.column_sums;
  return pointers;
}

Remainder RemainderOf(const Product& p, const Gemm& gemm) {
  const bool sums_are_fused = gemm.epilogue == GemmEpilogue::kBGradA;
  return {.bias = p.bias != nullptr && !HasBias(gemm.epilogue),
          .gelu = WritesInner(p.shape, gemm),
          .gelu_grad = p.shape.epilogue == Epilogue::kGeluGrad && !HasAux(gemm.epilogue),
          .column_sums = p.column_sums != nullptr && !sums_are_fused,
          .add_sums = sums_are_fused && p.shape.addend == Addend::kOutput};
}

bool WaitingSums::Waits(const Product& product, const Gemm& gemm) {
  return product.sums_may_wait && RemainderOf(product, gemm).add_sums;
}

AddSums WaitingSums::Before(const Product& product, const Gemm& gemm) {
  if (!Waits(product, gemm)) return {};
  return {.first = std::exchange(waiting_, {})};
}

AddSums WaitingSums::After(const Product& product, const Gemm& gemm, const void* vector) {
  AddSums::Vector left;
  if (RemainderOf(product, gemm).add_sums) {
    left = {.addends = static_cast<const float*>(vector),
            .sums = product.column_sums,
            .count = product.shape.n};
  }
  if (Waits(product, gemm)) {
    waiting_ = left;
    return {};
  }
  if (product.column_sums == nullptr || product.sums_may_wait) return {};
  return {.first = std::exchange(waiting_, {}), .second = left};
}

}  // namespace takt::backend::cuda
