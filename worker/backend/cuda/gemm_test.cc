// SPDX-License-Identifier: Apache-2.0
// Gives the simulated library each op as we describe it. The result must be what ops.h says of the
// op.
#include "worker/backend/cuda/gemm.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "worker/backend/cuda/gemm_testing.h"

namespace takt::backend::cuda {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kRows = 5, kColumns = 16, kDepth = 12;
constexpr std::int64_t kPaddedDepth = 16;  // what follows a row of a, or the rows of b, is zero

// A product in bf16 whose rows have gaps, which must not be written to.
struct Forward {
  static constexpr std::int64_t kAStride = kPaddedDepth, kCStride = 24;
  std::vector<Bf16> a, b, c, inner;
  std::vector<float> bias;

  Product Of(Activation activation, bool has_bias, std::int64_t c_stride) {
    const MatmulBf16 op{.a = a.data(),
                        .b = b.data(),
                        .c = c.data(),
                        .bias = has_bias ? bias.data() : nullptr,
                        .a_stride = kAStride,
                        .c_stride = c_stride,
                        .activation = activation,
                        .inner = activation == Activation::kNone ? nullptr : inner.data(),
                        .m = kRows,
                        .n = kColumns,
                        .k = kDepth};
    return ProductOf(op, {.data = a.data(), .stride = kAStride});
  }
  float Sum(std::int64_t row, std::int64_t column) const {
    float sum = 0;
    for (std::int64_t k = 0; k < kDepth; ++k)
      sum += Widened(a[row * kAStride + k]) * Widened(b[k * kColumns + column]);
    return sum;
  }
};

class GemmTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool fused() { return GetParam(); }

  std::vector<float> Numbers(std::int64_t count) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (float& number : numbers) number = static_cast<float>(integers_(generator_));
    return numbers;
  }
  std::vector<Bf16> Halves(std::int64_t count) {
    std::vector<Bf16> halves;
    for (const float number : Numbers(count)) halves.push_back(Rounded(number));
    return halves;
  }
  Forward MakeForward() {
    Forward forward{.a = Halves(kRows * Forward::kAStride),
                    .b = Halves(kPaddedDepth * kColumns),
                    .c = std::vector<Bf16>(kRows * Forward::kCStride, Rounded(kUntouched)),
                    .inner = Halves(kRows * kColumns),
                    .bias = Numbers(kColumns)};
    for (std::int64_t k = kDepth; k < kPaddedDepth; ++k) {
      for (std::int64_t row = 0; row < kRows; ++row) forward.a[row * Forward::kAStride + k] = {};
      for (std::int64_t i = 0; i < kColumns; ++i) forward.b[k * kColumns + i] = {};
    }
    return forward;
  }
  static std::vector<float> Wide(const std::vector<Bf16>& halves) {
    std::vector<float> wide;
    for (const Bf16 half : halves) wide.push_back(Widened(half));
    return wide;
  }

  std::mt19937 generator_{7};
  std::uniform_int_distribution<int> integers_{-2, 2};
};

INSTANTIATE_TEST_SUITE_P(FusedOrNot, GemmTest, ::testing::Bool());

TEST_P(GemmTest, MultipliesInF32WhateverIsTransposed) {
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const auto a = Numbers(kRows * kDepth), b = Numbers(kDepth * kColumns);
      const auto bias = Numbers(kColumns), addend = Numbers(kRows * kColumns);
      std::vector<float> c(kRows * kColumns, kUntouched), expected;
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t i = 0; i < kColumns; ++i) {
          float sum = bias[i] + addend[row * kColumns + i];
          for (std::int64_t k = 0; k < kDepth; ++k)
            sum += a[a_transposed ? k * kRows + row : row * kDepth + k] *
                   b[b_transposed ? i * kDepth + k : k * kColumns + i];
          expected.push_back(sum);
        }
      }
      const Matmul op{.a = a.data(),
                      .b = b.data(),
                      .c = c.data(),
                      .bias = bias.data(),
                      .addend = addend.data(),
                      .a_transposed = a_transposed,
                      .b_transposed = b_transposed,
                      .m = kRows,
                      .n = kColumns,
                      .k = kDepth};
      Compute(ProductOf(op, false), fused());
      EXPECT_EQ(c, expected) << a_transposed << b_transposed;
    }
  }
}

TEST_P(GemmTest, WritesBf16WithABiasAndLeavesGapsAlone) {
  for (const bool has_bias : {false, true}) {
    Forward forward = MakeForward();
    Compute(forward.Of(Activation::kNone, has_bias, Forward::kCStride), fused());
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < Forward::kCStride; ++i) {
        const float expected =
            i >= kColumns ? kUntouched : forward.Sum(row, i) + (has_bias ? forward.bias[i] : 0);
        ASSERT_EQ(Widened(forward.c[row * Forward::kCStride + i]), expected) << row << " " << i;
      }
    }
  }
}

TEST_P(GemmTest, AddsToBf16) {
  for (const bool has_bias : {false, true}) {
    Forward forward = MakeForward();
    Product product = forward.Of(Activation::kNone, has_bias, Forward::kCStride);
    const std::vector<Bf16> addend = Halves(kRows * Forward::kCStride);
    product.addend = addend.data();
    product.shape.addend = Addend::kOther;
    Compute(product, fused());
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kColumns; ++i) {
        const std::int64_t place = row * Forward::kCStride + i;
        const float bias = has_bias ? forward.bias[i] : 0;
        ASSERT_EQ(Widened(forward.c[place]), forward.Sum(row, i) + bias + Widened(addend[place]));
      }
    }
  }
}

TEST_P(GemmTest, GeluKeepsWhatWentIn) {
  for (const bool has_bias : {false, true}) {
    Forward forward = MakeForward();
    Compute(forward.Of(Activation::kGelu, has_bias, 0), fused());
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kColumns; ++i) {
        const float z = forward.Sum(row, i) + (has_bias ? forward.bias[i] : 0);
        ASSERT_EQ(Widened(forward.inner[row * kColumns + i]), z) << row << " " << i;
        ASSERT_EQ(Widened(forward.c[row * kColumns + i]), Widened(Rounded(Gelu(z))));
      }
    }
  }
}

TEST_P(GemmTest, GradientOfGeluReadsIt) {
  Forward forward = MakeForward();
  const std::vector<float> inner = Wide(forward.inner);
  Compute(forward.Of(Activation::kGeluGrad, false, 0), fused());
  EXPECT_EQ(Wide(forward.inner), inner);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kColumns; ++i) {
      const float expected = forward.Sum(row, i) * GeluSlope(inner[row * kColumns + i]);
      ASSERT_EQ(Widened(forward.c[row * kColumns + i]), Widened(Rounded(expected)));
    }
  }
}

TEST_P(GemmTest, GradientOfWeightsAndOfTheirBiasOverwriteOrAdd) {
  for (const std::int64_t rows : {std::int64_t{8}, std::int64_t{13}}) {
    for (const bool accumulate : {false, true}) {
      const std::int64_t stride = 16;
      const auto a = Halves(kDepth * stride), b = Halves(kDepth * kColumns);
      const auto old = Numbers(rows * kColumns), old_sums = Numbers(kColumns);
      std::vector<float> c = old, sums = old_sums;
      const MatmulTransposedBf16 op{.a = a.data(),
                                    .b = b.data(),
                                    .a_stride = stride,
                                    .c = c.data(),
                                    .column_sums = sums.data(),
                                    .accumulate = accumulate,
                                    .m = rows,
                                    .n = kColumns,
                                    .k = kDepth};
      const RoundedOperand a_place{.data = a.data(), .stride = stride};
      const RoundedOperand b_place{.data = b.data(), .stride = kColumns};
      const std::vector<Product> products = CutToVectors(ProductOf(op, a_place, b_place));
      ASSERT_EQ(products.size(), rows % 8 == 0 ? 1U : 2U);
      for (const Product& product : products) Compute(product, fused());
      for (std::int64_t i = 0; i < kColumns; ++i) {
        float sum = accumulate ? old_sums[i] : 0;
        for (std::int64_t k = 0; k < kDepth; ++k) sum += Widened(b[k * kColumns + i]);
        ASSERT_EQ(sums[i], sum);
        for (std::int64_t row = 0; row < rows; ++row) {
          float product = accumulate ? old[row * kColumns + i] : 0;
          for (std::int64_t k = 0; k < kDepth; ++k)
            product += Widened(a[k * stride + row]) * Widened(b[k * kColumns + i]);
          ASSERT_EQ(c[row * kColumns + i], product) << row << " " << i;
        }
      }
    }
  }
}

TEST_P(GemmTest, PaddedRowsOfTheOutputGetZeros) {
  constexpr std::int64_t kOdd = 13, kStride = 24;
  auto a = Halves(kRows * 8), b = Halves(8 * kColumns);  // b as packed: 13 columns of 16
  for (std::int64_t k = 0; k < 8; ++k) {
    for (std::int64_t i = kOdd; i < kColumns; ++i) b[k * kColumns + i] = {};
  }
  std::vector<Bf16> c(kRows * kStride, Rounded(kUntouched));
  const MatmulBf16 op{.a = a.data(),
                      .b = b.data(),
                      .c = c.data(),
                      .c_stride = kStride,
                      .m = kRows,
                      .n = kOdd,
                      .k = 8};
  const Product product = ProductOf(op, {.data = a.data(), .stride = 8});
  EXPECT_EQ(product.shape.n, 16);
  Compute(product, fused());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kStride; ++i) {
      float expected = i < kColumns ? 0 : kUntouched;
      for (std::int64_t k = 0; i < kOdd && k < 8; ++k)
        expected += Widened(a[row * 8 + k]) * Widened(b[k * kColumns + i]);
      ASSERT_EQ(Widened(c[row * kStride + i]), expected) << row << " " << i;
    }
  }
}

TEST(Gemm, SumsAreOfWhatCame) {
  const std::vector<float> b(kDepth * kColumns, 1.001F);
  std::vector<Bf16> rounded(kDepth * kColumns, Rounded(1.001F));
  std::vector<float> c(kRows * kColumns), sums(kColumns);
  const MatmulTransposedBf16 op{.a = rounded.data(),
                                .b = b.data(),
                                .c = c.data(),
                                .column_sums = sums.data(),
                                .m = kRows,
                                .n = kColumns,
                                .k = kDepth};
  const Product product = ProductOf(op, {.data = rounded.data(), .stride = kRows},
                                    {.data = rounded.data(), .stride = kColumns});
  EXPECT_EQ(product.shape.epilogue, Epilogue::kNone);
  EXPECT_EQ(RemainderOf(product, GemmOf(product.shape, true)), Remainder{.column_sums = true});
}

ProductShape Shape(Epilogue epilogue, std::int64_t n = kColumns) {
  return {.m = kRows,
          .n = n,
          .k = kDepth,
          .a_stride = 16,
          .b_stride = n,
          .c_stride = n,
          .bf16 = true,
          .bf16_c = epilogue != Epilogue::kColumnSums,
          .epilogue = epilogue,
          .alignment = 16};
}

// Three products with sums of their columns, whose addition one product passes on to the next.
class WaitingSumsTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kCounts[] = {16, 24, 8};

  Product Of(int i, bool may_wait) {
    Product product{.shape = Shape(Epilogue::kColumnSums, kCounts[i]),
                    .column_sums = sums_[i],
                    .sums_may_wait = may_wait};
    product.shape.addend = Addend::kOutput;
    return product;
  }
  static Gemm GemmOf(const Product& product, bool fused = true) {
    return cuda::GemmOf(product.shape, fused);
  }
  void ExpectVector(const AddSums::Vector& vector, int i) {
    EXPECT_EQ(vector.addends, left_[i]);
    EXPECT_EQ(vector.sums, sums_[i]);
    EXPECT_EQ(vector.count, kCounts[i]);
  }
  static void ExpectNothing(const AddSums& op) {
    EXPECT_EQ(op.first.count, 0);
    EXPECT_EQ(op.second.count, 0);
  }
  // Leaves sums of product i, which wait.
  void Leave(int i) {
    const Product product = Of(i, /*may_wait=*/true);
    ExpectNothing(waiting_.Before(product, GemmOf(product)));
    ExpectNothing(waiting_.After(product, GemmOf(product), left_[i]));
  }

  WaitingSums waiting_;
  float sums_[3][24], left_[3][24];
};

TEST_F(WaitingSumsTest, AreAddedWithThoseOfTheNextProductThatMayNotWait) {
  Leave(0);
  const Product without{.shape = Shape(Epilogue::kNone)};
  ExpectNothing(waiting_.Before(without, GemmOf(without)));
  ExpectNothing(waiting_.After(without, GemmOf(without), nullptr));
  const Product last = Of(1, /*may_wait=*/false);
  ExpectNothing(waiting_.Before(last, GemmOf(last)));
  const AddSums both = waiting_.After(last, GemmOf(last), left_[1]);
  ExpectVector(both.first, 0);
  ExpectVector(both.second, 1);
  const AddSums again = waiting_.After(last, GemmOf(last), left_[1]);
  EXPECT_EQ(again.first.count, 0);
  ExpectVector(again.second, 1);
}

TEST_F(WaitingSumsTest, GiveWayToOthersThatMayWait) {
  Leave(0);
  const Product second = Of(1, /*may_wait=*/true);
  const AddSums before = waiting_.Before(second, GemmOf(second));
  ExpectVector(before.first, 0);
  EXPECT_EQ(before.second.count, 0);
  ExpectNothing(waiting_.After(second, GemmOf(second), left_[1]));
  const Product last = Of(2, /*may_wait=*/false);
  const AddSums both = waiting_.After(last, GemmOf(last), left_[2]);
  ExpectVector(both.first, 1);
  ExpectVector(both.second, 2);
}

// A kernel of ours adds the sums of such a product at once.
TEST_F(WaitingSumsTest, StayWhereAProductThatMayWaitLeavesNone) {
  Leave(0);
  Product apart = Of(1, /*may_wait=*/true);
  const Gemm gemm = GemmOf(apart, /*fused=*/false);
  EXPECT_FALSE(WaitingSums::Waits(apart, gemm));
  ExpectNothing(waiting_.Before(apart, gemm));
  ExpectNothing(waiting_.After(apart, gemm, nullptr));
  apart.sums_may_wait = false;
  const AddSums alone = waiting_.After(apart, gemm, nullptr);
  ExpectVector(alone.first, 0);
  EXPECT_EQ(alone.second.count, 0);
}

TEST_F(WaitingSumsTest, NeverWaitWhereTheyOverwrite) {
  Product first = Of(0, /*may_wait=*/true);
  first.shape.addend = Addend::kNone;
  EXPECT_FALSE(WaitingSums::Waits(first, GemmOf(first)));
  ExpectNothing(waiting_.After(first, GemmOf(first), first.column_sums));
  const Product last = Of(1, /*may_wait=*/false);
  EXPECT_EQ(waiting_.After(last, GemmOf(last), left_[1]).first.count, 0);
}

TEST_F(WaitingSumsTest, AreForgotten) {
  Leave(0);
  waiting_.Drop();
  const Product last = Of(1, /*may_wait=*/false);
  EXPECT_EQ(waiting_.After(last, GemmOf(last), left_[1]).first.count, 0);
}

TEST(Gemm, WhatIsFusedWithoutTimingsHangsOnTheDevice) {
  EXPECT_THAT(GemmVariants(Shape(Epilogue::kNone), "9.0"), ElementsAre(false));
  EXPECT_THAT(GemmVariants(Shape(Epilogue::kBias), "8.0"), ElementsAre(true, false));
  for (const Epilogue other :
       {Epilogue::kGelu, Epilogue::kBiasGelu, Epilogue::kGeluGrad, Epilogue::kColumnSums}) {
    EXPECT_THAT(GemmVariants(Shape(other), "8.6"), ElementsAre(false, true));
    EXPECT_THAT(GemmVariants(Shape(other), "9.0"), ElementsAre(true, false));
    EXPECT_THAT(GemmVariants(Shape(other), "12.0"), ElementsAre(true, false));
  }
}

TEST(Gemm, TakesABiasOfABf16OutputOnlyRounded) {
  const float bias[8] = {};
  const Bf16 rounded[8] = {};
  Product product{.shape = Shape(Epilogue::kBias), .bias = bias};
  product.shape.bf16_c = true;
  const Gemm to_bf16 = GemmOf(product.shape, /*fused=*/true);
  EXPECT_EQ(PointersOf(product, to_bf16).vector, nullptr);
  product.rounded_bias = rounded;
  EXPECT_EQ(PointersOf(product, to_bf16).vector, static_cast<const void*>(rounded));
  product.shape.bf16_c = false;
  EXPECT_EQ(PointersOf(product, GemmOf(product.shape, /*fused=*/true)).vector,
            static_cast<const void*>(bias));
}

TEST(Gemm, AuxiliaryRowsOfNoWholeVectorsAreNotFused) {
  EXPECT_THAT(GemmVariants(Shape(Epilogue::kBiasGelu, 20), "9.0"), ElementsAre(false));
  EXPECT_EQ(GemmOf(Shape(Epilogue::kBiasGelu, 20), true).epilogue, GemmEpilogue::kBias);
  EXPECT_EQ(GemmOf(Shape(Epilogue::kGeluGrad, 20), true).epilogue, GemmEpilogue::kDefault);
}

TEST(Gemm, PartsOfASumAreNeverRoundedToBf16) {
  EXPECT_EQ(ReductionSchemes(GemmOf(Shape(Epilogue::kBias), true)), kReduceInComputeType);
  EXPECT_EQ(ReductionSchemes(GemmOf(Shape(Epilogue::kColumnSums), true)),
            kReduceInComputeType | kReduceInOutputType);
}

}  // namespace
}  // namespace takt::backend::cuda
