// SPDX-License-Identifier: Apache-2.0
// Gives the simulated library products in FP8 as we describe them. It checks the rules of its
// reference for them, and the results.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "worker/backend/cuda/gemm_testing.h"
#include "worker/backend/cuda/product.h"

namespace takt::backend::cuda {
namespace {

constexpr std::int64_t kRows = 5, kColumns = 16, kDepth = 12;
constexpr std::int64_t kPaddedDepth = 16;

// Codes of small integers, in rows of kPaddedDepth with zeros behind kDepth.
struct Codes {
  Codes(std::int64_t rows, bool is_e5m2, float inverse)
      : codes(static_cast<std::size_t>(rows * kPaddedDepth)),
        inverse_scale(inverse),
        e5m2(is_e5m2) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t k = 0; k < kDepth; ++k) {
        const auto sign = static_cast<std::uint8_t>((row + k) % 3 == 0 ? 0x80 : 0);
        // 1 and 2 are their exponents alone.
        const int exponent = (e5m2 ? 15 : 7) + static_cast<int>((row + 2 * k) % 2);
        codes[row * kPaddedDepth + k] =
            static_cast<std::uint8_t>(sign | exponent << (e5m2 ? 2 : 3));
      }
    }
  }
  Fp8Codes Place() const { return {codes.data(), kPaddedDepth, &inverse_scale}; }
  float At(std::int64_t row, std::int64_t k) const {
    return inverse_scale * Read(codes.data(), e5m2 ? ElementType::kE5m2 : ElementType::kE4m3,
                                row * kPaddedDepth + k);
  }
  float Product(std::int64_t row, const Codes& other, std::int64_t other_row) const {
    float sum = 0;
    for (std::int64_t k = 0; k < kDepth; ++k) sum += At(row, k) * other.At(other_row, k);
    return sum;
  }

  std::vector<std::uint8_t> codes;
  float inverse_scale;
  bool e5m2;
};

TEST(Fp8Gemm, MultipliesCodesOfFp8AndLeavesTheRestToUs) {
  for (const bool gradient : {false, true}) {
    const Codes a(kRows, gradient, 0.5F), b(kColumns, false, 2);
    std::vector<Bf16> packed(kColumns * kPaddedDepth / 2 + 8);
    std::copy(b.codes.begin(), b.codes.end(), reinterpret_cast<std::uint8_t*>(packed.data()));
    *reinterpret_cast<float*>(packed.data() + kColumns * kPaddedDepth / 2) = b.inverse_scale;
    const std::vector<float> bias(kColumns, 3);
    for (const Activation activation :
         {Activation::kNone, Activation::kGelu, Activation::kGeluGrad}) {
      std::vector<Bf16> c(kRows * kColumns), inner(kRows * kColumns, Rounded(0.5F));
      const bool has_bias = activation != Activation::kGeluGrad;
      const MatmulBf16 op{.a_fp8 = {Fp8Scaling::kTensor,
                                    gradient ? Fp8Operand::kGradient : Fp8Operand::kActivation},
                          .b = packed.data(),
                          .c = c.data(),
                          .bias = has_bias ? bias.data() : nullptr,
                          .activation = activation,
                          .inner = activation == Activation::kNone ? nullptr : inner.data(),
                          .m = kRows,
                          .n = kColumns,
                          .k = kDepth};
      Compute(Fp8ProductOf(op, a.Place()), /*fused=*/true);
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t i = 0; i < kColumns; ++i) {
          const float z = a.Product(row, b, i) + (has_bias ? 3.0F : 0.0F);
          const float expected = activation == Activation::kNone   ? z
                                 : activation == Activation::kGelu ? Gelu(z)
                                                                   : z * GeluSlope(0.5F);
          ASSERT_EQ(Widened(c[row * kColumns + i]), Widened(Rounded(expected))) << row << " " << i;
          if (activation == Activation::kGelu) {
            ASSERT_EQ(Widened(inner[row * kColumns + i]), z);
          }
        }
      }
    }
  }
}

TEST(Fp8Gemm, GradientsOfWeightsInFp8SumThePaddingOfNothing) {
  constexpr std::int64_t kOut = 5;
  for (const bool out_in : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const Codes a(kOut, out_in, 2), b(kColumns, !out_in, 0.25F);
      std::vector<float> c(kOut * kColumns, 7), sums(kColumns, 1),
          d_output(kDepth * kColumns, 0.5F);
      const auto fp8 = [](bool gradient) {
        return Fp8{Fp8Scaling::kTensor, gradient ? Fp8Operand::kGradient : Fp8Operand::kActivation};
      };
      const MatmulTransposedBf16 op{.b = d_output.data(),
                                    .a_fp8 = fp8(out_in),
                                    .b_fp8 = fp8(!out_in),
                                    .c = c.data(),
                                    .column_sums = sums.data(),
                                    .accumulate = accumulate,
                                    .m = kOut,
                                    .n = kColumns,
                                    .k = kDepth};
      Compute(Fp8ProductOf(op, a.Place(), b.Place()), /*fused=*/true);
      for (std::int64_t i = 0; i < kColumns; ++i) {
        EXPECT_EQ(sums[i], 0.5F * kDepth + (accumulate ? 1 : 0));
        for (std::int64_t row = 0; row < kOut; ++row)
          EXPECT_EQ(c[row * kColumns + i], a.Product(row, b, i) + (accumulate ? 7 : 0));
      }
    }
  }
}

// Activations have a scale for each 128 values, weights for each 128 x 128.
TEST(Fp8Gemm, MultipliesBlocksByTheirScales) {
  constexpr std::int64_t kM = 4, kN = 132, kK = 256, kBlocks = kK / kFp8BlockSize;
  constexpr std::uint8_t kOne = 0x38;
  const std::vector<std::uint8_t> a(kM * kK, kOne);
  std::vector<float> a_scales;
  for (std::int64_t i = 0; i < kBlocks * kM; ++i) a_scales.push_back(static_cast<float>(1 << i));
  std::vector<Bf16> packed(kN * kK);
  auto* const codes = reinterpret_cast<std::uint8_t*>(packed.data());
  std::fill_n(codes, kN * kK, kOne);
  auto* const b_scales = reinterpret_cast<float*>(codes + kN * kK);
  const float of_squares[] = {0.5F, 2, kUntouched, kUntouched, 4, 0.25F};
  std::copy(std::begin(of_squares), std::end(of_squares), b_scales);
  std::vector<float> c(kM * kN);
  const MatmulBf16 op{.a_fp8 = {Fp8Scaling::kBlock, Fp8Operand::kGradient},
                      .b = packed.data(),
                      .c = c.data(),
                      .m = kM,
                      .n = kN,
                      .k = kK};
  const Product product = Fp8ProductOf(op, {a.data(), kK, a_scales.data()});
  EXPECT_EQ(ToString(product.shape),
            "matmul 4x132x256 e4m3:128*e4m3:128x128 a:256 b^T:256 -> f32:132 aligned 16");
  Compute(product, /*fused=*/true);
  for (std::int64_t row = 0; row < kM; ++row) {
    for (std::int64_t i = 0; i < kN; ++i) {
      const float* const square = b_scales + (i < kFp8BlockSize ? 0 : 4);
      const float expected =
          kFp8BlockSize * (a_scales[row] * square[0] + a_scales[kM + row] * square[1]);
      ASSERT_EQ(c[row * kN + i], expected) << row << " " << i;
    }
  }
}

TEST(Fp8Gemm, NamesTheTypesOfFp8) {
  ProductShape shape{.m = 8, .n = 16, .k = 32, .a_stride = 32, .b_stride = 32, .c_stride = 16};
  shape.b_transposed = shape.fp8 = shape.e5m2_a = shape.bf16_c = true;
  shape.alignment = 16;
  EXPECT_EQ(ToString(shape), "matmul 8x16x32 e5m2*e4m3 a:32 b^T:32 -> bf16:16 aligned 16");
}

}  // namespace
}  // namespace takt::backend::cuda
