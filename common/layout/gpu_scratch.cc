// SPDX-License-Identifier: Apache-2.0
#include "common/layout/gpu_scratch.h"

#include <algorithm>

#include "common/layout/regions.h"

namespace takt::layout {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kBf16Bytes = 2, kFloatBytes = 4;
constexpr std::int64_t kPerVector = 8;    // bf16 in 16 bytes
constexpr std::int64_t kScoreTile = 128;  // rows and columns, filled up
constexpr std::int64_t kDesiredScoreBytes = std::int64_t{1}
                                            << 30;  // unless one sequence takes more

// cuDNN computes the gradients of attention's scores of so many sequences of a microbatch at once.
// Where layers are split, it does so for the heads of one leaf at a time.
std::int64_t ScoreBytes(const model::Model& model) {
  const std::int64_t context = RoundUp(model.config.context, kScoreTile);
  const std::int64_t heads = model.config.heads / model.tensor.leaves;
  const std::int64_t bytes = heads * context * context * kBf16Bytes;
  const std::int64_t most = std::max(std::int64_t{1}, kDesiredScoreBytes / bytes);
  const std::int64_t parts = (model.microbatch + most - 1) / most;
  return (model.microbatch + parts - 1) / parts * bytes;
}

// Returns the columns of the widest gradient in f32 that a product reads: that of a layer's output
// or, where queries are normalised, that of the queries.
std::int64_t WidestRounded(const model::ModelConfig& config) {
  const std::int64_t hidden = config.hidden;
  if (!model::NormalisesHeads(config.family)) return hidden;
  return std::max(hidden, std::int64_t{config.heads} * config.head_size);
}

// Returns the bytes of the largest operand of a product of blocks in FP8, with its scales and the
// scratch for finding them.
std::int64_t Fp8Bytes(const model::Model& model, std::int64_t rows) {
  constexpr std::int64_t kVector = 16, kBlock = 128, kScratchBytes = 4096;
  const bool blocks = model.precisions.fp8 == model::Fp8Recipe::kBlock;
  const std::int64_t unit = blocks ? kBlock : kVector;
  std::int64_t widest = 0;
  for (const model::Layer& layer : model.layers) {
    for (const model::Parameter& parameter : layer.parameters) {
      if (layer.block < 0 || parameter.shape.size() != 2) continue;
      widest = std::max({widest, parameter.shape[0], parameter.shape[1]});
    }
  }
  const std::int64_t codes = RoundUp(rows, unit) * RoundUp(widest, unit);
  return kScratchBytes + codes + kFloatBytes * (blocks ? codes / kBlock : 1);
}

}  // namespace

Section LayOutGpuScratch(const model::Model& model, int microbatches_of_w) {
  const model::ModelConfig& config = model.config;
  Section section{.name = "GPU backend"};
  const auto add = [&](Role role, std::int64_t bytes) {
    section.AddAlone(MemoryKind::kScratch, {.role = role, .bytes = bytes});
  };
  add(Role::kProductWorkspace, kWorkspaceBytes);
  if (model.precisions.activations == model::Precision::kF32) return section;
  const std::int64_t rows = std::int64_t{model.microbatch} * config.context;
  std::int64_t rounded = kBf16Bytes * rows * RoundUp(WidestRounded(config), kPerVector);
  if (model.precisions.fp8 != model::Fp8Recipe::kNone)
    rounded = std::max(rounded, Fp8Bytes(model, rows));
  add(Role::kRoundedForInputGrad, rounded);
  add(Role::kRoundedForWeightGrad, microbatches_of_w * rounded);
  // cuDNN does not tell documents apart as we do.
  const bool by_cudnn = config.head_size % kPerVector == 0 && !model.separate_documents;
  if (by_cudnn) add(Role::kScoreGradients, ScoreBytes(model));
  return section;
}

}  // namespace takt::layout
