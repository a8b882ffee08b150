// SPDX-License-Identifier: Apache-2.0
// Tests the kernels of attention themselves. attention_test.cc has what they compute.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cpu/kernels.h"

namespace takt::backend {
namespace {

constexpr std::int64_t kContext = 200, kHeads = 2, kSize = 20, kColumns = 3 * kHeads * kSize;

// Returns what a forward and a backward of one sequence leave behind, with scratch full of
// `filling`.
std::vector<float> Results(const Kernels& kernels, std::int64_t window,
                           const std::vector<std::int32_t>& starts, float filling) {
  const AttentionShape shape{.batch = 1,
                             .context = kContext,
                             .heads = kHeads,
                             .kv_heads = kHeads,
                             .head_size = kSize,
                             .q_stride = kColumns,
                             .kv_stride = kColumns,
                             .out_stride = kHeads * kSize,
                             .window = window};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> qkv(kContext * kColumns), d_output(kContext * kHeads * kSize);
  for (float& value : qkv) value = normal(random);
  for (float& value : d_output) value = normal(random);
  std::vector<float> output(d_output.size()), logsumexp(kHeads * kContext), d_qkv(qkv.size());
  const std::int64_t k = kHeads * kSize, v = 2 * k;
  AttentionForward forward{.shape = shape};
  forward.q.f32 = qkv.data();
  forward.k.f32 = qkv.data() + k;
  forward.v.f32 = qkv.data() + v;
  forward.output.f32 = output.data();
  forward.logsumexp = logsumexp.data();
  forward.starts = starts.data();
  AttentionBackward backward{.shape = shape};
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.output.f32 = output.data();
  backward.logsumexp = logsumexp.data();
  backward.d_output.f32 = d_output.data();
  backward.d_q.f32 = d_qkv.data();
  backward.d_k.f32 = d_qkv.data() + k;
  backward.d_v.f32 = d_qkv.data() + v;
  backward.starts = starts.data();
  const std::int64_t floats =
      std::max(kernels.attention_forward_scratch(shape), kernels.attention_backward_scratch(shape));
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  const std::unique_ptr<float, decltype(&std::free)> scratch(
      static_cast<float*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), &std::free);
  for (std::int64_t item = 0; item < kHeads; ++item) {
    std::fill_n(scratch.get(), floats, filling);
    kernels.attention_forward(forward, item, scratch.get());
    std::fill_n(scratch.get(), floats, filling);
    kernels.attention_backward(backward, item, scratch.get());
  }
  output.insert(output.end(), d_qkv.begin(), d_qkv.end());
  return output;
}

// What nobody sees of a block is not computed, so it must not be read either.
TEST(AttentionKernels, ReadNothingThatWasInTheirScratch) {
  std::vector<std::int32_t> starts(kContext);
  for (std::int64_t row = 0; row < kContext; ++row)
    starts[row] = static_cast<std::int32_t>(row < 70 ? row / 7 * 7 : row < 75 ? 70 : 75);
  for (const Kernels* const kernels : RunnableKernels()) {
    for (const std::int64_t window : {0, 9, 70}) {
      SCOPED_TRACE(::testing::Message() << kernels->name << ", window " << window);
      const std::vector<float> expected = Results(*kernels, window, starts, 0);
      for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
      EXPECT_EQ(Results(*kernels, window, starts, std::numeric_limits<float>::quiet_NaN()),
                expected);
    }
  }
}

}  // namespace
}  // namespace takt::backend
