// SPDX-License-Identifier: Apache-2.0
// Simulates the library as cuBLASLt's reference describes it, for tests. They use small integers,
// so that sums are exact in any order and in bf16.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cuda/gemm.h"

namespace takt::backend::cuda {

inline constexpr float kUntouched = 99;

inline float Widened(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

inline Bf16 Rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Returns the number that a code stands for. A code has a sign, an exponent and a mantissa. These
// tests have no NaN.
inline float Fp8Number(std::uint8_t code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1),
            one = exponent > 0 ? 1 << mantissa_bits : 0;
  const auto size = static_cast<float>(one + mantissa);
  return std::ldexp(code < 0x80 ? size : -size, std::max(exponent, 1) - bias - mantissa_bits);
}

inline float Read(const void* data, ElementType type, std::int64_t i) {
  switch (type) {
    case ElementType::kF32:
      return static_cast<const float*>(data)[i];
    case ElementType::kBf16:
      return Widened(static_cast<const Bf16*>(data)[i]);
    case ElementType::kE4m3:
      return Fp8Number(static_cast<const std::uint8_t*>(data)[i], 3, 7);
    case ElementType::kE5m2:
      return Fp8Number(static_cast<const std::uint8_t*>(data)[i], 2, 15);
  }
  return kUntouched;
}

inline void Write(void* data, ElementType type, std::int64_t i, float value) {
  if (type == ElementType::kBf16) {
    static_cast<Bf16*>(data)[i] = Rounded(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

inline float Gelu(float x) {
  return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
}

inline float GeluSlope(float x) {
  const float t = std::tanh(0.7978845608F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.7978845608F * (1 + 0.134145F * x * x);
}

// Returns the element of op(matrix) at a row and column.
inline float At(const void* data, const GemmMatrix& matrix, bool transposed, std::int64_t row,
                std::int64_t column) {
  return Read(data, matrix.type,
              transposed ? row * matrix.stride + column : column * matrix.stride + row);
}

// Returns the scale of the value at k in row `outer` of `rows`.
inline float ScaleAt(const float* scales, GemmScales mode, std::int64_t outer, std::int64_t rows,
                     std::int64_t k, std::int64_t depth) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t blocks = (depth + kBlock - 1) / kBlock;
  switch (mode) {
    case GemmScales::kOne:
      return *scales;
    case GemmScales::kVectors:
      return scales[k / kBlock * rows + outer];
    case GemmScales::kSquares:
      return scales[outer / kBlock * ((blocks + 3) / 4 * 4) + k / kBlock];
  }
  return kUntouched;
}

// Checks what the reference requires of a product in FP8 on compute capability 8.9 and 9.0, and
// what we promise beyond that.
inline void ExpectFp8Rules(const Gemm& g, const GemmPointers& p) {
  constexpr std::int64_t kAlignment = 16;  // in bytes, of every column
  EXPECT_TRUE(g.a_transposed && !g.b_transposed);
  EXPECT_FALSE(g.a.type == ElementType::kE5m2 && g.b.type == ElementType::kE5m2);
  EXPECT_EQ(g.epilogue, GemmEpilogue::kDefault);
  EXPECT_EQ(g.a.stride % kAlignment, 0);
  EXPECT_EQ(g.b.stride % kAlignment, 0);
  EXPECT_EQ(g.d.stride * (g.d.type == ElementType::kBf16 ? 2 : 4) % kAlignment, 0);
  EXPECT_EQ(g.a.rows % kAlignment, 0) << "k";
  EXPECT_FALSE(g.a_scales == GemmScales::kSquares && g.b_scales == GemmScales::kSquares);
  if (g.a_scales != GemmScales::kOne) {
    EXPECT_EQ(g.a.type, ElementType::kE4m3);
    EXPECT_EQ(g.b.type, ElementType::kE4m3);
    EXPECT_NE(g.b_scales, GemmScales::kOne);
    EXPECT_EQ(g.d.rows % 4, 0);
    EXPECT_EQ(g.d.columns % 4, 0);
  }
  ASSERT_NE(p.a_scales, nullptr);
  ASSERT_NE(p.b_scales, nullptr);
}

inline void Multiply(const Gemm& g, const GemmPointers& p) {
  const std::int64_t depth = g.a_transposed ? g.a.rows : g.a.columns;
  if (g.has_scales) {
    ASSERT_NO_FATAL_FAILURE(ExpectFp8Rules(g, p));
  }
  const auto scale = [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    if (!g.has_scales) return 1.0F;
    return ScaleAt(p.a_scales, g.a_scales, i, g.d.rows, k, depth) *
           ScaleAt(p.b_scales, g.b_scales, j, g.d.columns, k, depth);
  };
  ASSERT_EQ(depth, g.b_transposed ? g.b.columns : g.b.rows);
  ASSERT_EQ(g.d.rows, g.a_transposed ? g.a.columns : g.a.rows);
  ASSERT_EQ(g.d.columns, g.b_transposed ? g.b.rows : g.b.columns);
  for (const GemmMatrix* matrix : {&g.a, &g.b, &g.d}) ASSERT_GE(matrix->stride, matrix->rows);
  const ElementType type = g.d.type;
  auto* const vector = const_cast<void*>(p.vector);
  for (std::int64_t i = 0; i < g.d.rows; ++i) {
    float sum = 0;
    for (std::int64_t k = 0; k < depth; ++k) sum += At(p.a, g.a, g.a_transposed, i, k);
    if (g.epilogue == GemmEpilogue::kBGradA) Write(vector, type, i, sum);
    for (std::int64_t j = 0; j < g.d.columns; ++j) {
      const std::int64_t place = j * g.d.stride + i, aux = j * g.aux_stride + i;
      float z = p.beta == 0 ? 0 : p.beta * Read(p.c, type, place);
      for (std::int64_t k = 0; k < depth; ++k)
        z += scale(i, j, k) * At(p.a, g.a, g.a_transposed, i, k) *
             At(p.b, g.b, g.b_transposed, k, j);
      switch (g.epilogue) {
        case GemmEpilogue::kDefault:
        case GemmEpilogue::kBGradA:
          break;
        case GemmEpilogue::kBias:
          z += Read(vector, type, i);
          break;
        case GemmEpilogue::kGeluAuxBias:
          z += Read(vector, type, i);
          [[fallthrough]];
        case GemmEpilogue::kGeluAux:
          ASSERT_EQ(g.aux_stride % 8, 0);
          Write(p.aux, type, aux, z);
          z = Gelu(z);
          break;
        case GemmEpilogue::kDGelu:
          ASSERT_EQ(g.aux_stride % 8, 0);
          z *= GeluSlope(Read(p.aux, type, aux));
          break;
      }
      Write(p.d, type, place, z);
    }
  }
}

// Runs the gemm, with a vector of its own where it needs one, and the remainder that our kernels
// do.
inline void Compute(const Product& product, bool fused) {
  const ProductShape& s = product.shape;
  const Gemm gemm = GemmOf(s, fused);
  GemmPointers pointers = PointersOf(product, gemm);
  std::vector<float> room(static_cast<std::size_t>(s.n), kUntouched);
  if (gemm.has_vector() && pointers.vector == nullptr) {
    pointers.vector = room.data();
    for (std::int64_t i = 0; product.bias != nullptr && i < s.n; ++i)
      Write(room.data(), gemm.d.type, i, product.bias[i]);
  }
  Multiply(gemm, pointers);
  const Remainder left = RemainderOf(product, gemm);
  for (std::int64_t row = 0; row < s.m; ++row) {
    for (std::int64_t i = 0; i < s.n; ++i) {
      const std::int64_t place = row * s.c_stride + i;
      float c = Read(product.c, gemm.d.type, place);
      if (left.bias && left.gelu) {
        Bf16& inner = product.inner[row * s.n + i];
        inner = Rounded(Widened(inner) + product.bias[i]);
      } else if (left.bias) {
        c += product.bias[i];
      }
      if (left.gelu) c = Gelu(Widened(product.inner[row * s.n + i]));
      if (left.gelu_grad) c *= GeluSlope(Widened(product.inner[row * s.n + i]));
      Write(product.c, gemm.d.type, place, c);
    }
  }
  for (std::int64_t i = 0; left.column_sums && i < s.n; ++i) {
    float sum = s.addend == Addend::kOutput ? product.column_sums[i] : 0;
    for (std::int64_t k = 0; k < product.summed_rows; ++k) {
      const std::int64_t place = k * s.n + i;
      sum += product.summed.bf16 != nullptr ? Widened(product.summed.bf16[place])
                                            : product.summed.f32[place];
    }
    product.column_sums[i] = sum;
  }
  for (std::int64_t i = 0; left.add_sums && i < s.n; ++i) product.column_sums[i] += room[i];
}

}  // namespace takt::backend::cuda
