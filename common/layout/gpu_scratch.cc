// SPDX-License-Identifier: Apache-2.0
#include "common/layout/gpu_scratch.h"

#include <algorithm>

#include "common/layout/regions.h"

namespace takt::layout {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kBf16Bytes = 2;
constexpr std::int64_t kPerVector = 8;    // bf16 in 16 bytes
constexpr std::int64_t kScoreTile = 128;  // rows and columns, filled up
constexpr std::int64_t kDesiredScoreBytes = std::int64_t{1}
                                            << 30;  // unless one sequence takes more

// cuDNN computes the gradients of attention's scores of so many sequences of a microbatch at once.
std::int64_t ScoreBytes(const model::Model& model) {
  const std::int64_t context = RoundUp(model.config.context, kScoreTile);
  const std::int64_t bytes = model.config.heads * context * context * kBf16Bytes;
  const std::int64_t most = std::max(std::int64_t{1}, kDesiredScoreBytes / bytes);
  const std::int64_t parts = (model.microbatch + most - 1) / most;
  return (model.microbatch + parts - 1) / parts * bytes;
}

// Returns the columns of the widest gradient in f32 that a product reads: that of a layer's output
// or, where queries are normalised, that of the queries.
std::int64_t WidestRounded(const model::ModelConfig& config) {
  const std::int64_t hidden = config.hidden;
  if (config.family != model::Family::kQwen3) return hidden;
  return std::max(hidden, std::int64_t{config.heads} * config.head_size);
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
  const std::int64_t rounded = kBf16Bytes * rows * RoundUp(WidestRounded(config), kPerVector);
  add(Role::kRoundedForInputGrad, rounded);
  add(Role::kRoundedForWeightGrad, microbatches_of_w * rounded);
  // cuDNN does not tell documents apart as we do.
  const bool by_cudnn = config.head_size % kPerVector == 0 && !model.separate_documents;
  if (by_cudnn) add(Role::kScoreGradients, ScoreBytes(model));
  return section;
}

}  // namespace takt::layout
