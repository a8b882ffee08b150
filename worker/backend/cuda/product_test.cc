// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/product.h"

#include "gmock/gmock.h"

namespace takt::backend::cuda {
namespace {

alignas(64) float memory[64];
alignas(64) Bf16 halves[64];

Matmul Forward() {
  return {.a = memory, .b = memory, .c = memory, .bias = memory, .m = 2048, .n = 768, .k = 3072};
}

TEST(Product, NamesAllThatAChoiceHangsOn) {
  EXPECT_EQ(ToString(ProductOf(Forward(), false).shape),
            "matmul 2048x768x3072 f32 a:3072 b:768 +bias aligned 16");
  Matmul backward = Forward();
  backward.bias = nullptr;
  backward.addend = memory + 16;
  backward.b_transposed = true;
  EXPECT_EQ(ToString(ProductOf(backward, true).shape),
            "matmul 2048x768x3072 tf32 a:3072 b^T:3072 +addend aligned 16");
  backward.addend = backward.c;
  backward.a_transposed = true;
  backward.b_transposed = false;
  EXPECT_EQ(ToString(ProductOf(backward, false).shape),
            "matmul 2048x768x3072 f32 a^T:2048 b:768 +c aligned 16");
}

TEST(Product, AlignmentIsThatOfTheWorstPointerAndSixteenAtMost) {
  Matmul op = Forward();
  EXPECT_EQ(ProductOf(op, false).shape.alignment, 16);
  op.bias = memory + 2;
  EXPECT_EQ(ProductOf(op, false).shape.alignment, 8);
  op.a = memory + 1;
  EXPECT_EQ(ProductOf(op, false).shape.alignment, 4);
}

TEST(Product, OfPackedMatricesHasRowsOfWholeVectors) {
  const MatmulBf16 op{.b = halves, .c = memory, .m = 5, .n = 13, .k = 7};
  EXPECT_EQ(ToString(ProductOf(op, {.data = halves, .stride = 8}).shape),
            "matmul 5x13x7 bf16 a:8 b:16 aligned 16");
}

TEST(Product, GradientsOfWeightsAddToThemselves) {
  MatmulTransposedBf16 op{.c = memory, .m = 5, .n = 13, .k = 7};
  const RoundedOperand a{.data = halves, .stride = 8}, b{.data = halves, .stride = 16};
  EXPECT_EQ(ProductOf(op, a, b).addend, nullptr);
  op.accumulate = true;
  const Product product = ProductOf(op, a, b);
  EXPECT_EQ(product.addend, op.c);
  EXPECT_EQ(ToString(product.shape), "matmul 5x13x7 bf16 a^T:8 b:16 +c aligned 16");
}

}  // namespace
}  // namespace takt::backend::cuda
