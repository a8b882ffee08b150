// SPDX-License-Identifier: Apache-2.0
// logits = norm(x) W^T with W [V,C] (the token table if tied), then softmax and cross-entropy.
#include "common/base/status.h"
#include "worker/train/layer.h"
#include "worker/train/norm.h"
#include "worker/train/regions.h"

namespace takt::train {
namespace {

// Offsets in floats.
template <class Norm>
struct StashLayout {
  Regions regions;
  std::int64_t norm;    // [N,C] the norm's output
  std::int64_t logits;  // [N,V], the gradient of the logits once the loss is known
  typename Norm::Stash norm_stash;

  StashLayout(std::int64_t n, std::int64_t c, std::int64_t vocab)
      : norm(regions.Add(n * c)), logits(regions.Add(n * vocab)), norm_stash(regions, n, c) {}
};

template <class Norm>
class Head final : public Layer {
 public:
  // parameters: the norm's, then the weight.
  Head(const model::Model& model, const LayerParameters& parameters)
      : rows_(std::int64_t{model.microbatch} * model.config.context),
        columns_(model.config.hidden),
        vocab_(model.config.vocab),
        layout_(rows_, columns_, vocab_),
        norm_(rows_, model.config.norm_epsilon, parameters.refs),
        weight_(parameters.refs[Norm::kNumParameters]) {}

  std::int64_t stash_floats() const override { return layout_.regions.size(); }
  std::int64_t scratch_floats() const override { return rows_ * columns_; }

  absl::Status Forward(const ForwardCall& call) const override {
    const StashLayout<Norm>& at = layout_;
    float* s = call.stash;
    if (call.probe) call.probe("act.final_norm.input", call.input, rows_ * columns_);
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input, s + at.norm, s, at.norm_stash));
    if (call.probe) call.probe("act.final_norm.output", s + at.norm, rows_ * columns_);
    RETURN_IF_ERROR(call.backend->Run(backend::Matmul{.a = s + at.norm,
                                                      .b = weight_.weight,
                                                      .c = s + at.logits,
                                                      .b_transposed = true,
                                                      .m = rows_,
                                                      .n = vocab_,
                                                      .k = columns_}));
    if (call.probe) call.probe("logits", s + at.logits, rows_ * vocab_);
    return call.backend->Run(backend::CrossEntropy{.logits = s + at.logits,
                                                   .targets = call.view.targets,
                                                   .loss_sum = call.loss_sum,
                                                   .rows = rows_,
                                                   .vocab = vocab_,
                                                   .scale = call.loss_scale,
                                                   .gradient = call.gradient});
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashLayout<Norm>& at = layout_;
    float* s = call.stash;
    float* d_norm = call.scratch;
    RETURN_IF_ERROR(call.backend->Run(backend::Matmul{.a = s + at.logits,
                                                      .b = weight_.weight,
                                                      .c = d_norm,
                                                      .m = rows_,
                                                      .n = columns_,
                                                      .k = vocab_}));
    if (call.probe) call.probe("act_grad.final_norm.output", d_norm, rows_ * columns_);
    RETURN_IF_ERROR(norm_.InputGrad(
        *call.backend, {.dy = d_norm, .x = call.input, .dx = call.d_input}, s, at.norm_stash));
    if (call.probe) call.probe("act_grad.final_norm.input", call.d_input, rows_ * columns_);
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    const StashLayout<Norm>& at = layout_;
    const float* s = call.stash;
    RETURN_IF_ERROR(
        call.backend->Run(backend::Matmul{.a = s + at.logits,
                                          .b = s + at.norm,
                                          .c = weight_.gradient,
                                          .addend = call.accumulate ? weight_.gradient : nullptr,
                                          .a_transposed = true,
                                          .m = vocab_,
                                          .n = columns_,
                                          .k = rows_}));
    return norm_.WeightGrad(*call.backend, s, at.norm_stash, call.accumulate);
  }

 private:
  const std::int64_t rows_, columns_, vocab_;
  const StashLayout<Norm> layout_;
  const Norm norm_;
  const ParameterRef& weight_;  // [V,C]
};

}  // namespace

std::unique_ptr<Layer> MakeGpt2Head(const model::Model& model, const LayerParameters& parameters) {
  return std::make_unique<Head<LayerNorm>>(model, parameters);
}

std::unique_ptr<Layer> MakeLlamaHead(const model::Model& model, const LayerParameters& parameters) {
  return std::make_unique<Head<RmsNorm>>(model, parameters);
}

}  // namespace takt::train
