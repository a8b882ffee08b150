// SPDX-License-Identifier: Apache-2.0
// head.cc where tensor parallelism splits layers: each rank has some blocks of words, and computes
// with them as ranks of a spread vocabulary do (spread_head.h). Only the softmax of each block
// passes between ranks, never logits.
#include <cstddef>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/split_layers.h"
#include "common/model/split_stash.h"
#include "worker/train/layer.h"
#include "worker/train/split_norm.h"
#include "worker/train/spread_head.h"
#include "worker/train/tensor_meetings.h"

namespace takt::train {
namespace {

using enum model::HeadStash::Tensor;
using model::SplitHeadScratch;

mesh::BlockRun BlocksHere(const model::Model& model) {
  const auto [first, last] = model::BlocksOf(model.tensor, model.config.vocab);
  return {.first = first, .last = last};
}

template <class NormType>
class SplitHead final : public Layer {
 public:
  // The layer's parameters are those of the norm, then the weight, if there are words here.
  explicit SplitHead(const LayerOptions& options)
      : layout_(options.place.stash),
        scratch_(options.place.scratch),
        meetings_(*options.meetings),
        norm_(meetings_, options.model.config.norm_epsilon, options.parameters.refs),
        head_(options.model, BlocksHere(options.model), MatrixOf(options.parameters)) {}

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    const SpreadHeadMemory memory = MemoryOf(s, call.view, /*scratch=*/nullptr);
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input.f32, NormOf(s)));
    RETURN_IF_ERROR(meetings_.GatherRows(memory.norm));
    RETURN_IF_ERROR(head_.Forward(*call.backend, memory));
    RETURN_IF_ERROR(meetings_.GatherSoftmax(memory.parts));
    return head_.Loss(*call.backend, memory, {.sum = call.loss_sum, .scale = call.loss_scale});
  }

  // The stash keeps everything that F computes.
  absl::Status Recompute(const RecomputeCall&) const override { return absl::OkStatus(); }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    const SpreadHeadMemory memory = MemoryOf(s, call.view, call.scratch);
    RETURN_IF_ERROR(head_.InputGrad(*call.backend, memory));
    std::vector<float*> sums;
    for (std::size_t i = 0; i < head_.partial_sums().parts.size(); ++i)
      sums.push_back(memory.sums[i].f32);
    auto* const received =
        reinterpret_cast<float*>(call.scratch + scratch_[SplitHeadScratch::kReceived]);
    ASSIGN_OR_RETURN(const float* const d_norm, meetings_.ScatterSums(sums, received));
    return norm_.InputGrad(*call.backend, {.dy = d_norm, .x = call.input, .dx = call.d_input},
                           NormOf(s));
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    const std::vector<backend::Operand> norm = call.Stashed(layout_, kNorm);
    for (std::size_t i = 0; kLogits + i < layout_.size(); ++i) {
      RETURN_IF_ERROR(head_.WeightGrad(*call.backend, i, norm, call.Stashed(layout_, kLogits + i),
                                       call.accumulate));
    }
    return norm_.WeightGrad(*call.backend, call.Stashed(layout_, kNormPart), call.accumulate);
  }

 private:
  static const ParameterRef* MatrixOf(const LayerParameters& parameters) {
    constexpr std::size_t kMatrix = NormType::kNumParameters;
    return parameters.refs.size() > kMatrix ? &parameters.refs[kMatrix] : nullptr;
  }
  static NormStash NormOf(const StashView& s) {
    return {s.Tensor(kNorm), s[kNormStats], s[kNormPart]};
  }
  // scratch: null for F, which needs none.
  SpreadHeadMemory MemoryOf(const StashView& s, const TokenView& view, std::byte* scratch) const {
    SpreadHeadMemory memory{.view = view,
                            .norm = s.Tensor(kNorm),
                            .parts = reinterpret_cast<backend::SoftmaxPart*>(s[kSoftmaxParts]),
                            .softmax = reinterpret_cast<backend::SoftmaxRow*>(s[kSoftmax])};
    for (std::size_t i = kLogits; i < layout_.size(); ++i) memory.logits.push_back(s.Tensor(i));
    for (std::size_t i = SplitHeadScratch::kSums; scratch != nullptr && i < scratch_.size(); ++i)
      memory.sums.emplace_back(reinterpret_cast<float*>(scratch + scratch_[i]));
    return memory;
  }

  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  TensorMeetings& meetings_;
  const SplitNorm<NormType> norm_;
  const SpreadHead head_;
};

}  // namespace

std::unique_ptr<Layer> MakeSplitGpt2Head(const LayerOptions& options) {
  return std::make_unique<SplitHead<LayerNorm>>(options);
}

std::unique_ptr<Layer> MakeSplitLlamaHead(const LayerOptions& options) {
  return std::make_unique<SplitHead<RmsNorm>>(options);
}

}  // namespace takt::train
