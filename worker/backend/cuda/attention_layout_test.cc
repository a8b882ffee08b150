// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/attention_layout.h"

#include "gmock/gmock.h"

namespace takt::backend::cuda {
namespace {

// 6 rows; q has 16 columns, k and v 8 each.
AttentionShape Shape(std::int64_t q_stride, std::int64_t kv_stride) {
  return {.batch = 2,
          .context = 3,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 4,
          .q_stride = q_stride,
          .kv_stride = kv_stride,
          .out_stride = 16};
}

float memory[6 * 64];

TEST(QkvLayout, OfDenseMatricesAndOfOneTensor) {
  EXPECT_EQ(LayoutOf(Shape(16, 8), Qkv<float>{memory, memory + 300, memory + 200}),
            QkvLayout::kApart);
  EXPECT_EQ(LayoutOf(Shape(32, 32), Qkv<float>{memory, memory + 16, memory + 24}),
            QkvLayout::kTogether);
}

TEST(QkvLayout, OfWhatHasGapsIsNone) {
  EXPECT_EQ(LayoutOf(Shape(32, 32), Qkv<float>{memory, memory + 24, memory + 16}), std::nullopt);
  EXPECT_EQ(LayoutOf(Shape(40, 40), Qkv<float>{memory, memory + 16, memory + 24}), std::nullopt);
  EXPECT_EQ(LayoutOf(Shape(16, 32), Qkv<float>{memory, memory + 16, memory + 24}), std::nullopt);
}

TEST(QkvLayout, CopiesLieAsTheOriginalsDo) {
  ASSERT_EQ(QkvCount(Shape(16, 8)), 6 * 32);
  Bf16 copy[6 * 32];
  const Qkv<Bf16> apart = Place(Shape(16, 8), QkvLayout::kApart, copy);
  EXPECT_EQ(apart.q, copy);
  EXPECT_EQ(apart.k, copy + 6 * 16);
  EXPECT_EQ(apart.v, copy + 6 * 24);
  const Qkv<Bf16> together = Place(Shape(32, 32), QkvLayout::kTogether, copy);
  EXPECT_EQ(LayoutOf(Shape(32, 32), together), QkvLayout::kTogether);
}

}  // namespace
}  // namespace takt::backend::cuda
