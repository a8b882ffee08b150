// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

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
  // One kernel sums runs of rows, and adds them up for the weight and the bias.
  const OpCount weights = CountOp(LayerNormBackwardWeights{.d_output = kHalves,
                                                           .x = kFloats,
                                                           .mean = kFloats,
                                                           .rstd = kFloats,
                                                           .d_weight = kFloats,
                                                           .d_bias = kFloats,
                                                           .rows = 100,
                                                           .columns = 16,
                                                           .accumulate = true});
  EXPECT_EQ(weights.launches, 1);
  EXPECT_EQ(weights.elementwise_bytes, 100 * 16 * (2 + 4));
}

TEST(CountOp, CountsWhatAProductNeedsBesideIt) {
  MatmulBf16 op{.a = kHalves, .b = kHalves, .c = kHalves, .m = 8, .n = 16, .k = 32};
  EXPECT_EQ(CountOp(op).launches, 1);
  EXPECT_EQ(CountOp(op).product_flops, 2.0 * 8 * 16 * 32);
  op.bias = kFloats;  // the library wants the bias of a bf16 output in bf16
  EXPECT_EQ(CountOp(op).launches, 2);
  op.rounded_bias = kHalves;
  EXPECT_EQ(CountOp(op).launches, 1);
  op.bias = nullptr, op.rounded_bias = nullptr;
  op.a = kFloats;  // is rounded first
  EXPECT_EQ(CountOp(op).launches, 2);
  EXPECT_EQ(CountOp(op).elementwise_bytes, 8 * 32 * (4 + 2));
}

TEST(CountOp, CountsANormThatSumsOnItsWay) {
  LayerNormBackwardInput op{.d_output = kHalves,
                            .x = kFloats,
                            .weight = kFloats,
                            .mean = kFloats,
                            .rstd = kFloats,
                            .residual_gradient = kFloats,
                            .d_input = kFloats,
                            .rounded = kHalves,
                            .sums = {.d_weight = kFloats,
                                     .d_bias = kFloats,
                                     .of_residual_gradient = kFloats,
                                     .of_d_input = kFloats},
                            .rows = 100,
                            .columns = 768};
  EXPECT_EQ(CountOp(op).launches, 1);
  EXPECT_EQ(CountOp(op).elementwise_bytes, 100 * 768 * (2 + 4 + 4 + 4 + 2));
  op.columns = 16;  // too few: the norm's sums and each of the others are a kernel of their own
  EXPECT_EQ(CountOp(op).launches, 4);
}

TEST(CountOp, CountsOneLaunchThatAddsTheSumsOfTwoProducts) {
  MatmulTransposedBf16 op{
      .a = kHalves, .b = kHalves, .c = kFloats, .column_sums = kFloats, .m = 8, .n = 16, .k = 32};
  EXPECT_EQ(CountOp(op).launches, 1) << "sums that overwrite";
  op.accumulate = true;
  EXPECT_EQ(CountOp(op).launches, 2);
  op.sums_may_wait = true;
  EXPECT_EQ(CountOp(op).launches, 1);
}

// The last block of GPT-2's vocabulary has 1105 words.
TEST(CountOp, CountsTheLastRowsOfAnOddVocabularyAsAProductOfTheirOwn) {
  MatmulTransposedBf16 op{.a = kHalves,
                          .b = kHalves,
                          .a_stride = 1152,
                          .c = kFloats,
                          .accumulate = true,
                          .m = 50257 % 4096,
                          .n = 768,
                          .k = 65536};
  EXPECT_EQ(CountOp(op).launches, 2);
  op.m = 1152;
  EXPECT_EQ(CountOp(op).launches, 1);
}

// Has what a block takes. A change that adds to it must say why here.
struct ExpectedCounts {
  const char *model, *residual;
  int microbatch, context, hidden;
  double launches[3], bytes[3];  // of F, I and W; bytes a token and column of the hidden size
};
constexpr ExpectedCounts kExpected[] = {
    // F: two norms, four products, attention. I: four products, two norms, attention in two parts
    // of three. W: four products, of which two also sum columns, and one launch that adds the sums
    // of both.
    {"gpt2-124m", "f32", 64, 1024, 768, {7, 12, 5}, {12, 32, 0}},
    {"gpt2-124m", "bf16", 64, 1024, 768, {7, 12, 5}, {8, 16, 0}},
    {"gpt2-355m", "f32", 32, 1024, 1024, {7, 9, 5}, {12, 32, 0}},
    // F: two norms, four products, attention, a rotation, SwiGLU. I: four products, two norms, four
    // parts of attention, a rotation, SwiGLU. W: four products.
    {"llama-1b", "f32", 4, 4096, 2048, {9, 20, 4}, {12 + 5 + 24, 32 + 5 + 40, 0}},
    {"llama-1b", "bf16", 4, 4096, 2048, {9, 20, 4}, {8 + 5 + 24, 16 + 5 + 40, 0}},
};

TEST(CountModel, HasTheExpectedCounts) {
  for (const ExpectedCounts& expected : kExpected) {
    SCOPED_TRACE(std::string(expected.model) + " " + expected.residual);
    const ModelCounts counts = CountModel({.model = expected.model,
                                           .device = "cuda",
                                           .precision = "bf16",
                                           .residual = expected.residual,
                                           .batch = 2 * expected.microbatch,
                                           .microbatch = expected.microbatch,
                                           .context = expected.context})
                                   .value();
    const OpCount* const kinds[] = {&counts.forward, &counts.input_grad, &counts.weight_grad};
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(kinds[i]->launches, expected.launches[i]) << i;
      EXPECT_DOUBLE_EQ(kinds[i]->elementwise_bytes / counts.tokens / expected.hidden,
                       expected.bytes[i])
          << i;
    }
  }
}

// F and I each gather and scatter around attention and around the MLP.
TEST(CountModel, CountsOneOfTheRanksThatSplitLayers) {
  const ModelCounts counts = CountModel({.model = "gpt2-124m",
                                         .device = "cuda",
                                         .precision = "bf16",
                                         .batch = 128,
                                         .microbatch = 64,
                                         .context = 1024},
                                        /*tensor=*/4)
                                 .value();
  EXPECT_EQ(counts.meetings, 8);
  EXPECT_EQ(counts.forward.launches, 10);
  EXPECT_EQ(counts.input_grad.launches, 19);
  EXPECT_EQ(counts.weight_grad.launches, 9);
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
      EXPECT_GT(kind.product_flops, 0);
    }
    EXPECT_GT(counts.forward.elementwise_bytes, 0);
    EXPECT_GT(counts.input_grad.elementwise_bytes, 0);
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
