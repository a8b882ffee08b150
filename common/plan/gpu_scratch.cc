// SPDX-License-Identifier: Apache-2.0
#include "common/plan/gpu_scratch.h"

#include "common/base/memory_kind.h"

namespace takt::plan {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kBf16Bytes = 2;
constexpr std::int64_t kPerVector = 8;                              // bf16 in 16 bytes
constexpr std::int64_t kScoreTile = 128;                            // rows and columns, filled up
constexpr std::int64_t kDesiredScoreBytes = std::int64_t{1} << 30;  // unless one takes more

constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t unit) {
  return (a + unit - 1) / unit * unit;
}

std::int64_t ScoreBytes(const model::Model& model) {
  const std::int64_t context = RoundUp(model.config.context, kScoreTile);
  const std::int64_t bytes = model.config.heads * context * context * kBf16Bytes;
  std::int64_t sequences = model.microbatch;
  while (sequences > 1 &&
         (model.microbatch % sequences != 0 || sequences * bytes > kDesiredScoreBytes)) {
    --sequences;
  }
  return sequences * bytes;
}

}  // namespace

std::int64_t GpuScratch::total() const {
  return AllocatedBytes(workspace) + AllocatedBytes(rounded_for_i) + AllocatedBytes(rounded_for_w) +
         AllocatedBytes(scores);
}

GpuScratch GpuScratchOf(const model::Model& model, int microbatches_of_w) {
  const model::ModelConfig& config = model.config;
  GpuScratch scratch{.workspace = kWorkspaceBytes};
  if (model.precisions.activations == model::Precision::kF32) return scratch;
  const std::int64_t rows = std::int64_t{model.microbatch} * config.context;
  scratch.rounded_for_i = kBf16Bytes * rows * RoundUp(config.hidden, kPerVector);
  scratch.rounded_for_w = microbatches_of_w * scratch.rounded_for_i;
  if (config.head_size % kPerVector == 0) scratch.scores = ScoreBytes(model);
  return scratch;
}

}  // namespace takt::plan
