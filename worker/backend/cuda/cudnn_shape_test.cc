// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/cudnn_shape.h"

#include <array>

#include "common/layout/gpu_scratch.h"
#include "gmock/gmock.h"

namespace takt::backend::cuda {
namespace {

alignas(16) Bf16 halves[1024];
float floats[64];

// Describes q, k and v side by side.
AttentionShape Shape(std::int64_t batch, std::int64_t context) {
  return {.batch = batch,
          .context = context,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .q_stride = 64,
          .kv_stride = 64,
          .out_stride = 32};
}

AttentionForward Forward() {
  return {.shape = Shape(2, 3),
          .q = halves,
          .k = halves + 32,
          .v = halves + 48,
          .output = halves + 512,
          .logsumexp = floats};
}

AttentionBackward Backward() {
  return {.shape = Shape(2, 3),
          .q = halves,
          .k = halves + 32,
          .v = halves + 48,
          .output = halves + 512,
          .logsumexp = floats,
          .d_output = halves + 512,
          .d_q = halves,
          .d_k = halves + 32,
          .d_v = halves + 48};
}

TEST(CudnnShape, WantsBf16InWholeVectors) {
  EXPECT_TRUE(FitsCudnn(Forward()));
  EXPECT_TRUE(FitsCudnn(Backward()));
  AttentionForward forward = Forward();
  forward.output = floats;
  EXPECT_FALSE(FitsCudnn(forward));
  forward = Forward();
  forward.k = halves + 33;
  EXPECT_FALSE(FitsCudnn(forward));
  forward = Forward();
  forward.shape.kv_stride = 60;
  EXPECT_FALSE(FitsCudnn(forward));
  forward = Forward();
  const std::int32_t starts = 0;
  forward.starts = &starts;  // our own kernels tell documents apart
  EXPECT_FALSE(FitsCudnn(forward));
  AttentionBackward backward = Backward();
  backward.starts = &starts;
  EXPECT_FALSE(FitsCudnn(backward));
  backward = Backward();
  backward.d_v = floats;
  EXPECT_FALSE(FitsCudnn(backward));
  backward = Backward();
  backward.shape.head_size = 12;
  EXPECT_FALSE(FitsCudnn(backward));
}

TEST(CudnnShape, GradientsOfScoresTakeAboutAGibibyte) {
  const auto of = [](std::int64_t batch, std::int64_t context, std::int64_t heads) {
    AttentionShape shape = Shape(batch, context);
    shape.heads = heads;
    return SequencesAtATime(shape);
  };
  EXPECT_EQ(of(32, 1024, 12), 32);  // 24 MiB each
  EXPECT_EQ(of(64, 1024, 12), 32);
  EXPECT_EQ(of(60, 1024, 12), 30);
  EXPECT_EQ(of(43, 1024, 12), 22);  // a prime: then 21
  EXPECT_EQ(of(97, 1024, 12), 33);  // 33, 33, 31
  EXPECT_EQ(of(4, 4096, 32), 1);    // a gibibyte each
  EXPECT_EQ(of(2, 8192, 32), 1);    // four
  EXPECT_EQ(of(8, 1000, 128), 4);   // rows of whole tiles count
}

// The plan of a job counts this much for the gradients of attention's scores.
std::int64_t PredictedScoreBytes(const model::Model& model) {
  for (const layout::Tensor& tensor : layout::LayOutGpuScratch(model).tensors) {
    if (tensor.role == layout::Role::kScoreGradients) return tensor.bytes;
  }
  return 0;
}

TEST(CudnnShape, GradientsOfScoresTakeWhatIsPredicted) {
  for (const auto& [batch, context, heads] :
       {std::array{32, 1024, 12}, {60, 1024, 12}, {43, 1024, 12}, {2, 8192, 32}, {8, 1000, 128}}) {
    model::Model model{
        .config = {.hidden = heads * 64, .heads = heads, .head_size = 64, .context = context},
        .microbatch = batch,
        .precisions = {model::Precision::kBf16, model::Precision::kBf16}};
    AttentionShape shape = Shape(batch, context);
    shape.heads = heads;
    const std::int64_t tiled = (context + 127) / 128 * 128;
    EXPECT_EQ(PredictedScoreBytes(model), SequencesAtATime(shape) * heads * tiled * tiled * 2);
    model.separate_documents = true;  // our own kernels compute these
    EXPECT_EQ(PredictedScoreBytes(model), 0);
    model.separate_documents = false;
    model.precisions.activations = model::Precision::kF32;
    EXPECT_EQ(PredictedScoreBytes(model), 0);
  }
}

TEST(CudnnShape, PartsBeginAtTheirSequence) {
  const AttentionBackward part = Sequences(Backward(), 1, 1);
  EXPECT_EQ(part.shape.batch, 1);
  EXPECT_EQ(part.q.bf16, halves + 3 * 64);
  EXPECT_EQ(part.k.bf16, halves + 32 + 3 * 64);
  EXPECT_EQ(part.v.bf16, halves + 48 + 3 * 64);
  EXPECT_EQ(part.output.bf16, halves + 512 + 3 * 32);
  EXPECT_EQ(part.d_output.bf16, halves + 512 + 3 * 32);
  EXPECT_EQ(part.logsumexp, floats + 3 * 4);  // [B,H,T]
  EXPECT_EQ(part.d_q.bf16, halves + 3 * 64);
  EXPECT_EQ(part.d_k.bf16, halves + 32 + 3 * 64);
  EXPECT_EQ(part.d_v.bf16, halves + 48 + 3 * 64);
}

}  // namespace
}  // namespace takt::backend::cuda
