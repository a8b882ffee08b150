// SPDX-License-Identifier: Apache-2.0
// The blocks of all families have attention, then an MLP, each between a norm and a residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/context_layers.h"
#include "worker/train/context_meetings.h"
#include "worker/train/layer.h"
#include "worker/train/stash_view.h"

namespace takt::train {

class Block : public Layer {
 public:
  absl::Status Forward(const ForwardCall& call) const final {
    const StashView s(layout_, call.stash);
    Probe(call.probe, "act", call.input);
    RETURN_IF_ERROR(
        ForwardInside({*call.backend, call.view, call.input, s, call.scratch}, /*products=*/true));
    return Output(call, s);
  }

  absl::Status Recompute(const RecomputeCall& call) const final {
    const StashView s(layout_, call.stash);
    return ForwardInside({*call.backend, call.view, call.input, s, call.scratch},
                         /*products=*/layout_.recompute() == model::Recompute::kFull);
  }

  absl::Status InputGrad(const InputGradCall& call) const final {
    RETURN_IF_ERROR(MlpInputGrad(call));
    RETURN_IF_ERROR(AttentionInputGrad(call));
    Probe(call.probe, "act_grad", call.d_input);
    return absl::OkStatus();
  }

 protected:
  // Has what F computes with, the first time and again.
  struct Pass {
    backend::Backend& backend;
    const TokenView& view;
    backend::Operand input;
    const StashView& stash;
    std::byte* scratch;
  };

  explicit Block(const LayerOptions& options)
      : config_(options.model.config),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        batch_(options.model.microbatch),
        context_here_(options.model.context_here()),
        rows_(options.model.rows()),
        context_(options.context),
        block_(options.layer.block) {}

  // Runs the op, on the keys of all ranks that share the sequence; or with a cache the one for
  // tokens that follow those in it.
  absl::Status Attend(const Pass& pass, backend::AttentionForward op) const {
    backend::Backend& backend = pass.backend;
    const KeyValueCache* const cache = pass.view.cache;
    if (context_ != nullptr) {
      const KeysOfAll all = OfAll(pass.scratch, model::ContextScratch::kKeys);
      RETURN_IF_ERROR(context_->GatherKeys({op.k.f32, op.v.f32, op.shape.kv_stride}, all));
      op.k = all.keys;
      op.v = all.values;
      ShareQueries(op.shape);
    }
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

  // Runs the op likewise. The gradients of keys are those of the rank's tokens, from all queries.
  absl::Status AttendBackward(const InputGradCall& call, backend::AttentionBackward op) const {
    if (context_ == nullptr) return call.backend->Run(op);
    const KeysOfAll all = OfAll(call.scratch, model::ContextScratch::kKeys);
    const KeysOfAll partial = OfAll(call.scratch, model::ContextScratch::kKeyGrads);
    const KeyGradsHere mine{op.d_k.f32, op.d_v.f32, op.shape.kv_stride};
    RETURN_IF_ERROR(context_->GatherKeys({op.k.f32, op.v.f32, op.shape.kv_stride}, all));
    op.k = all.keys;
    op.v = all.values;
    op.d_k = partial.keys;
    op.d_v = partial.values;
    ShareQueries(op.shape);
    RETURN_IF_ERROR(call.backend->Run(op));
    return context_->SumKeyGradients(partial, /*received=*/all.keys, mine);
  }

  const model::ModelConfig& config_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  const std::int64_t batch_;
  const std::int64_t context_here_;  // tokens of each sequence
  const std::int64_t rows_;
  ContextMeetings* const context_;  // null: no other rank has tokens of these sequences

 private:
  // Computes everything except the block's output. products: false if they are still in the stash.
  virtual absl::Status ForwardInside(const Pass& pass, bool products) const = 0;
  virtual absl::Status Output(const ForwardCall& call, const StashView& s) const = 0;
  virtual absl::Status MlpInputGrad(const InputGradCall& call) const = 0;
  virtual absl::Status AttentionInputGrad(const InputGradCall& call) const = 0;

  // Returns two of the block's last tensors in scratch, of which `first` is one.
  KeysOfAll OfAll(std::byte* scratch, model::ContextScratch::Tensor first) const {
    const auto tensor = [&](std::size_t i) {
      return reinterpret_cast<float*>(
          scratch + scratch_[scratch_.size() - model::ContextScratch::kNumTensors + i]);
    };
    return {.keys = tensor(first), .values = tensor(std::size_t{first} + 1)};
  }

  // Makes the shape of whole sequences that of this rank's queries.
  void ShareQueries(backend::AttentionShape& shape) const {
    shape.kv_stride = model::KeyColumns(config_);
    shape.shares = context_->share().size;
    shape.share = context_->share().index;
  }

  void Probe(const TensorProbe& probe, const char* kind, const backend::Operand& input) const {
    if (probe)
      probe(absl::StrCat(kind, ".blocks.", block_, ".input"), {input, rows_, config_.hidden});
  }

  const int block_;
};

}  // namespace takt::train
