// SPDX-License-Identifier: Apache-2.0
// The blocks of all families have attention, then an MLP, each between a norm and a residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/layer.h"
#include "worker/train/stash_view.h"

namespace takt::train {

class Block : public Layer {
 public:
  absl::Status Forward(const ForwardCall& call) const final {
    const StashView s(layout_, call.stash);
    Probe(call.probe, "act", call.input);
    RETURN_IF_ERROR(ForwardInside({.backend = call.backend,
                                   .view = call.view,
                                   .input = call.input,
                                   .stash = call.stash,
                                   .scratch = call.scratch},
                                  s, /*products=*/true));
    return Output(call, s);
  }

  absl::Status Recompute(const RecomputeCall& call) const final {
    return ForwardInside(call, StashView(layout_, call.stash),
                         /*products=*/layout_.recompute() == model::Recompute::kFull);
  }

  absl::Status InputGrad(const InputGradCall& call) const final {
    RETURN_IF_ERROR(MlpInputGrad(call));
    RETURN_IF_ERROR(AttentionInputGrad(call));
    Probe(call.probe, "act_grad", call.d_input);
    return absl::OkStatus();
  }

 protected:
  explicit Block(const LayerOptions& options)
      : config_(options.model.config),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        batch_(options.model.microbatch),
        rows_(batch_ * config_.context),
        block_(options.layer.block) {}

  // Runs the op, or with a cache the one for tokens that follow those in it.
  absl::Status Attend(backend::Backend& backend, const backend::AttentionForward& op,
                      const KeyValueCache* cache) const {
    if (cache == nullptr) return backend.Run(op);
    TAKT_CHECK(batch_ == 1 && op.output.f32 != nullptr);
    const KeyValueCache::Block& block = cache->blocks[static_cast<std::size_t>(block_)];
    return backend.Run(backend::CachedAttention{.q = op.q.f32,
                                                .k = op.k.f32,
                                                .v = op.v.f32,
                                                .keys = block.keys,
                                                .values = block.values,
                                                .output = op.output.f32,
                                                .rows = op.shape.context,
                                                .past = cache->past,
                                                .capacity = cache->capacity,
                                                .heads = op.shape.heads,
                                                .kv_heads = op.shape.kv_heads,
                                                .head_size = op.shape.head_size,
                                                .q_stride = op.shape.q_stride,
                                                .kv_stride = op.shape.kv_stride,
                                                .out_stride = op.shape.out_stride,
                                                .window = cache->window});
  }

  const model::ModelConfig& config_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  const std::int64_t batch_, rows_;

 private:
  // Computes everything except the block's output. products: false if they are still in the stash.
  virtual absl::Status ForwardInside(const RecomputeCall& call, const StashView& s,
                                     bool products) const = 0;
  virtual absl::Status Output(const ForwardCall& call, const StashView& s) const = 0;
  virtual absl::Status MlpInputGrad(const InputGradCall& call) const = 0;
  virtual absl::Status AttentionInputGrad(const InputGradCall& call) const = 0;

  void Probe(const TensorProbe& probe, const char* kind, const float* input) const {
    if (probe)
      probe(absl::StrCat(kind, ".blocks.", block_, ".input"), {input, rows_, config_.hidden});
  }

  const int block_;
};

}  // namespace takt::train
