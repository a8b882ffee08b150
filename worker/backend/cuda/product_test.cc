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

TEST(Product, FillsWhatIsNotReservedAndHalfAtLeast) {
  EXPECT_EQ(SmTarget(132, 0), 0);
  EXPECT_EQ(SmTarget(132, 16), 116);
  EXPECT_EQ(SmTarget(20, 16), 10);
}

TEST(Product, NamesAllThatAChoiceHangsOn) {
  EXPECT_EQ(ToString(ProductOf(Forward(), false).shape),
            "matmul 2048x768x3072 f32 a:3072 b:768 -> f32:768 bias aligned 16");
  Matmul backward = Forward();
  backward.bias = nullptr;
  backward.addend = memory + 16;
  backward.b_transposed = true;
  EXPECT_EQ(ToString(ProductOf(backward, true).shape),
            "matmul 2048x768x3072 tf32 a:3072 b^T:3072 -> f32:768 +addend aligned 16");
  backward.addend = backward.c;
  backward.a_transposed = true;
  backward.b_transposed = false;
  EXPECT_EQ(ToString(ProductOf(backward, false).shape),
            "matmul 2048x768x3072 f32 a^T:2048 b:768 -> f32:768 +c aligned 16");
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
            "matmul 5x13x8 bf16 a:8 b:16 -> f32:13 aligned 16");
}

TEST(Product, OfRowsReadsThemInEitherOrder) {
  MatmulBf16 op{.b = halves, .stored = StoredB::kRows, .c = halves, .m = 5, .n = 768, .k = 3};
  EXPECT_EQ(ToString(ProductOf(op, {.data = halves, .stride = 8}).shape),
            "matmul 5x768x8 bf16 a:8 b:768 -> bf16:768 aligned 16");
  op.stored = StoredB::kTransposedRows;
  op.n = 50257, op.k = 768, op.c_stride = 50304;
  EXPECT_EQ(ToString(ProductOf(op, {.data = halves, .stride = 768}).shape),
            "matmul 5x50264x768 bf16 a:768 b^T:768 -> bf16:50304 aligned 16");
}

TEST(Product, OfPaddedRowsHasWholeVectorsOfColumns) {
  const MatmulBf16 logits{
      .b = halves, .c = halves, .c_stride = 50304, .m = 4, .n = 50257, .k = 768};
  EXPECT_EQ(ToString(ProductOf(logits, {.data = halves, .stride = 768}).shape),
            "matmul 4x50264x768 bf16 a:768 b:50264 -> bf16:50304 aligned 16");
  const MatmulBf16 gradient{.a = halves, .b = halves, .c = memory, .m = 4, .n = 768, .k = 50257};
  EXPECT_EQ(ToString(ProductOf(gradient, {.data = halves, .stride = 50304}).shape),
            "matmul 4x768x50264 bf16 a:50304 b:768 -> f32:768 aligned 16");
  const MatmulTransposedBf16 weights{.b = halves, .c = memory, .m = 50257, .n = 768, .k = 4};
  const std::vector<Product> cut = CutToVectors(
      ProductOf(weights, {.data = halves, .stride = 50304}, {.data = halves, .stride = 768}));
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_EQ(ToString(cut[0].shape),
            "matmul 50256x768x4 bf16 a^T:50304 b:768 -> f32:768 aligned 16");
  EXPECT_EQ(ToString(cut[1].shape), "matmul 1x768x4 bf16 a^T:50304 b:768 -> f32:768 aligned 16");
}

TEST(Product, SaysWhatItsKernelMayDoAsWell) {
  MatmulBf16 op{.a = halves, .b = halves, .c = halves, .m = 5, .n = 16, .k = 8};
  const auto text = [&op] { return ToString(ProductOf(op, {.data = halves, .stride = 8}).shape); };
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:16 aligned 16");
  op.c_stride = 24;
  op.bias = memory;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:24 bias aligned 16");
  op.addend = op.c;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:24 bias +c aligned 16");
  op.addend = halves + 8;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:24 bias +addend aligned 16");
  op.addend = nullptr;
  op.c_stride = 0;
  op.activation = Activation::kGelu;
  op.inner = halves;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:16 bias gelu aligned 16");
  op.bias = nullptr;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:16 gelu aligned 16");
  op.activation = Activation::kGeluGrad;
  EXPECT_EQ(text(), "matmul 5x16x8 bf16 a:8 b:16 -> bf16:16 gelu' aligned 16");
}

TEST(Product, GradientsOfWeightsAddToThemselves) {
  MatmulTransposedBf16 op{.b = halves, .c = memory, .m = 5, .n = 13, .k = 7};
  const RoundedOperand a{.data = halves, .stride = 8}, b{.data = halves, .stride = 16};
  EXPECT_EQ(ProductOf(op, a, b).addend, nullptr);
  op.accumulate = true;
  op.column_sums = memory;
  const Product product = ProductOf(op, a, b);
  EXPECT_EQ(product.addend, op.c);
  EXPECT_EQ(ToString(product.shape), "matmul 5x13x7 bf16 a^T:8 b:16 -> f32:13 sums +c aligned 16");
}

TEST(Product, OperandsAreReadWhereTheyAreIfTensorCoresCan) {
  EXPECT_EQ(WhereRounded(halves, 16, 0).data, halves);
  EXPECT_EQ(WhereRounded(halves, 16, 24).data, halves);
  EXPECT_EQ(WhereRounded(halves, 16, 24).stride, 24);
  EXPECT_EQ(WhereRounded(halves, 13, 16).data, halves);
  for (const RoundedOperand& rounded :
       {WhereRounded(memory, 13, 0), WhereRounded(halves, 13, 0), WhereRounded(halves, 13, 20),
        WhereRounded(halves + 4, 13, 16)}) {
    EXPECT_EQ(rounded.data, nullptr);
    EXPECT_EQ(rounded.stride, 16);
  }
}

}  // namespace
}  // namespace takt::backend::cuda
