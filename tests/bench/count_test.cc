// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/bench/count_ops.h"
#include "tests/bench/model_counts.h"

namespace takt::bench {
namespace {

using namespace backend;  // NOLINT(google-build-using-namespace): the ops

alignas(256) std::byte memory[4096];
float* const kFloats = reinterpret_cast<float*>(memory);
Bf16* const kHalves = reinterpret_cast<Bf16*>(memory);

TEST(CountOp, CountsTheLaunchesOfOurKernels) {
  const OpCount norm = CountOp(LayerNormForward{.input = kFloats,
                                                .weight = kFloats,
                                                .bias = kFloats,
                                                .output = kHalves,
                                                .mean = kFloats,
                                                .rstd = kFloats,
                                                .rows = 8,
                                                .columns = 16});
  EXPECT_EQ(norm.launches, 1);
  EXPECT_EQ(norm.elementwise_bytes, 8 * 16 * (4 + 2));
  // Partial sums, then one kernel that adds them for the weight and the bias.
  const OpCount weights = CountOp(LayerNormBackwardWeights{.d_output = kHalves,
                                                           .x = kFloats,
                                                           .mean = kFloats,
                                                           .rstd = kFloats,
                                                           .d_weight = kFloats,
                                                           .d_bias = kFloats,
                                                           .rows = 100,
                                                           .columns = 16,
                                                           .accumulate = true});
  EXPECT_EQ(weights.launches, 2);
  EXPECT_EQ(weights.elementwise_bytes, 100 * 16 * (2 + 4));
}

TEST(CountOp, CountsWhatAProductNeedsBesideIt) {
  MatmulBf16 op{.a = kHalves, .b = kHalves, .c = kHalves, .m = 8, .n = 16, .k = 32};
  EXPECT_EQ(CountOp(op).launches, 1);
  EXPECT_EQ(CountOp(op).product_flops, 2.0 * 8 * 16 * 32);
  op.bias = kFloats;  // the library wants the bias of a bf16 output in bf16
  EXPECT_EQ(CountOp(op).launches, 2);
  op.bias = nullptr;
  op.a = kFloats;  // is rounded first
  EXPECT_EQ(CountOp(op).launches, 2);
  EXPECT_EQ(CountOp(op).elementwise_bytes, 8 * 32 * (4 + 2));
}

TEST(CountModel, KindsAddUpToABlockAndBlocksToAStep) {
  for (const char* const model : {"tiny", "tiny-llama"}) {
    SCOPED_TRACE(model);
    const TrainJobOptions options{
        .model = model, .device = "cuda", .precision = "bf16", .microbatch = 2, .context = 64};
    const ModelCounts counts = CountModel(options).value();
    EXPECT_EQ(counts.tokens, 128);
    for (const OpCount& kind : {counts.forward, counts.input_grad, counts.weight_grad}) {
      EXPECT_GE(kind.launches, 5);
      EXPECT_GT(kind.elementwise_bytes, 0);
      EXPECT_GT(kind.product_flops, 0);
    }
    EXPECT_EQ(counts.Block().launches,
              counts.forward.launches + counts.input_grad.launches + counts.weight_grad.launches);
    // Four blocks, the embedding and the head.
    EXPECT_GT(counts.microbatch.launches, 4 * counts.Block().launches);
    EXPECT_LT(counts.microbatch.launches, 5 * counts.Block().launches);
    EXPECT_GT(counts.rest.launches, 0);
    // I and W of a product take as many FLOPs as its F.
    EXPECT_EQ(counts.forward.product_flops, counts.input_grad.product_flops);
    EXPECT_EQ(counts.forward.product_flops, counts.weight_grad.product_flops);
  }
}

}  // namespace
}  // namespace takt::bench
