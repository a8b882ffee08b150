// SPDX-License-Identifier: Apache-2.0
// logits = norm(x) W^T with W [V,C] (the token table if tied), then softmax and cross-entropy.
#include "common/base/status.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"

namespace takt::train {
namespace {

using enum model::HeadStash::Tensor;

template <class Norm>
class Head final : public Layer {
 public:
  // The layer's parameters are those of the norm, then the weight.
  explicit Head(const LayerOptions& options)
      : rows_(std::int64_t{options.model.microbatch} * options.model.config.context),
        columns_(options.model.config.hidden),
        vocab_(options.model.config.vocab),
        stride_(model::LogitsStride(options.model.config, options.model.precisions.activations)),
        layout_(options.place.stash),
        d_norm_offset_(options.place.scratch[model::HeadScratch::kDNorm]),
        norm_(rows_, options.model.config.norm_epsilon, options.parameters.refs),
        product_(rows_, Linear::Storage::kOutIn, options.parameters.refs[Norm::kNumParameters],
                 nullptr, stride_) {}

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    const backend::Output norm = s.Tensor(kNorm), logits = s.Tensor(kLogits);
    if (call.probe) call.probe("act.final_norm.input", {call.input, rows_, columns_});
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input, NormOf(s)));
    if (call.probe) call.probe("act.final_norm.output", {norm, rows_, columns_});
    RETURN_IF_ERROR(product_.Forward(*call.backend, norm, nullptr, logits));
    if (call.probe) call.probe("logits", {logits, rows_, vocab_, stride_});
    return call.backend->Run(backend::CrossEntropy{.logits = logits,
                                                   .targets = call.view.targets,
                                                   .loss_sum = call.loss_sum,
                                                   .rows = rows_,
                                                   .vocab = vocab_,
                                                   .stride = stride_,
                                                   .scale = call.loss_scale,
                                                   .gradient = call.gradient});
  }

  // The stash keeps the logits in every mode.
  absl::Status Recompute(const RecomputeCall& call) const override {
    return norm_.Forward(*call.backend, call.input, NormOf(StashView(layout_, call.stash)));
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    const backend::Output d_norm = TensorAt(call.scratch + d_norm_offset_, layout_[kNorm].bf16);
    RETURN_IF_ERROR(product_.InputGrad(*call.backend, s.Tensor(kLogits), d_norm));
    if (call.probe) call.probe("act_grad.final_norm.output", {d_norm, rows_, columns_});
    RETURN_IF_ERROR(norm_.InputGrad(
        *call.backend, {.dy = d_norm, .x = call.input, .dx = call.d_input}, NormOf(s)));
    if (call.probe) call.probe("act_grad.final_norm.input", {call.d_input, rows_, columns_});
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    const auto s = [&](auto tensor) { return call.Stashed(layout_, tensor); };
    RETURN_IF_ERROR(product_.WeightGrad(*call.backend, s(kNorm), s(kLogits), call.accumulate));
    return norm_.WeightGrad(*call.backend, s(kNormPart), call.accumulate);
  }

 private:
  static NormStash NormOf(const StashView& s) {
    return {s.Tensor(kNorm), s[kNormStats], s[kNormPart]};
  }

  const std::int64_t rows_, columns_, vocab_, stride_;
  const layout::StashLayout layout_;
  const std::int64_t d_norm_offset_;  // in scratch
  const Norm norm_;
  const Linear product_;  // weight [V,C]
};

}  // namespace

std::unique_ptr<Layer> MakeGpt2Head(const LayerOptions& options) {
  return std::make_unique<Head<LayerNorm>>(options);
}

std::unique_ptr<Layer> MakeLlamaHead(const LayerOptions& options) {
  return std::make_unique<Head<RmsNorm>>(options);
}

}  // namespace takt::train
