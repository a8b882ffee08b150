// SPDX-License-Identifier: Apache-2.0
// x2 = x + c_proj(attention(c_attn(ln_1(x))));  y = x2 + c_proj(gelu(c_fc(ln_2(x2))))
#include "common/base/status.h"
#include "common/model/gpt2.h"
#include "worker/train/block.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"

namespace takt::train {
namespace {

using enum model::Gpt2BlockStash::Tensor;
using enum model::Gpt2BlockScratch::Tensor;

constexpr auto kInOut = Linear::Storage::kInOut;

class Gpt2Block final : public Block {
 public:
  explicit Gpt2Block(const LayerOptions& options)
      : Block(options),
        rounds_(options.model.precisions.RoundsGradientsOnce() && !StreamsBf16()),
        norm1_(rows_, config_.norm_epsilon, {Refs(options), 2}),
        qkv_(rows_, kInOut, Refs(options)[2], &Refs(options)[3]),
        projection_(rows_, kInOut, Refs(options)[4], &Refs(options)[5]),
        norm2_(rows_, config_.norm_epsilon, {Refs(options) + 6, 2}),
        fc_(rows_, kInOut, Refs(options)[8], &Refs(options)[9]),
        mlp_projection_(rows_, kInOut, Refs(options)[10], &Refs(options)[11]) {}

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const auto s = [&](auto tensor) { return call.Stashed(layout_, tensor); };
    const auto d_inner = InBf16() ? call.Left(layout_, kInner, scratch_[kDInner]) : s(kInner);
    const auto d_qkv = call.Left(layout_, kQkv, scratch_[kDQkv]);
    const auto d_middle = call.Rounded(layout_, kMiddle, scratch_[kDMiddle], rounds_);
    const bool add = call.accumulate;
    const auto bias =
        call.follows_i ? Linear::BiasGradient::kElsewhere : Linear::BiasGradient::kApart;
    RETURN_IF_ERROR(mlp_projection_.WeightGrad(backend, s(kActivated), call.d_output(), add, bias));
    RETURN_IF_ERROR(fc_.WeightGrad(backend, s(kNorm2), d_inner, add, Linear::BiasGradient::kLater));
    RETURN_IF_ERROR(projection_.WeightGrad(backend, s(kAttention), d_middle, add, bias));
    RETURN_IF_ERROR(qkv_.WeightGrad(backend, s(kNorm1), d_qkv, add));
    if (call.follows_i) return absl::OkStatus();
    RETURN_IF_ERROR(norm2_.WeightGrad(backend, s(kNorm2Part), add));
    return norm1_.WeightGrad(backend, s(kNorm1Part), add);
  }

  bool StreamsBf16() const override { return layout_[kMiddle].bf16; }

 private:
  absl::Status Output(const ForwardCall& call, const StashView& s) const override {
    return mlp_projection_.Forward(*call.backend, s.Tensor(kActivated), s.Tensor(kMiddle),
                                   call.output);
  }

  absl::Status ForwardInside(const Pass& pass, bool products) const override {
    backend::Backend& backend = pass.backend;
    const StashView& s = pass.stash;
    RETURN_IF_ERROR(norm1_.Forward(backend, pass.input, Norm1(s)));
    if (products) {
      const backend::Output qkv = s.Tensor(kQkv), attention = s.Tensor(kAttention);
      RETURN_IF_ERROR(qkv_.Forward(backend, s.Tensor(kNorm1), nullptr, qkv));
      RETURN_IF_ERROR(Attend(pass, {.shape = Shape(),
                                    .q = qkv,
                                    .k = From(qkv, config_.hidden),
                                    .v = From(qkv, 2 * std::int64_t{config_.hidden}),
                                    .output = attention,
                                    .logsumexp = s[kLogsumexp],
                                    .starts = pass.view.starts}));
      RETURN_IF_ERROR(projection_.Forward(backend, attention, pass.input, s.Tensor(kMiddle)));
    }
    RETURN_IF_ERROR(norm2_.Forward(backend, s.Tensor(kMiddle), Norm2(s)));
    const backend::Output inner = s.Tensor(kInner), activated = s.Tensor(kActivated);
    if (FusesGelu()) return fc_.ForwardGelu(backend, s.Tensor(kNorm2), inner.bf16, activated.bf16);
    if (products) RETURN_IF_ERROR(fc_.Forward(backend, s.Tensor(kNorm2), nullptr, inner));
    return backend.Run(
        backend::GeluForward{.input = inner, .output = activated, .count = rows_ * config_.inner});
  }

  // With activations in bf16, a product and the GELU after it are one op, which may take GELU of a
  // value before it is rounded. Where only GELU is computed again, they are separate ops, because
  // then only the rounded value exists.
  bool FusesGelu() const { return InBf16() && layout_.recompute() != model::Recompute::kSelective; }

  absl::Status MlpInputGrad(const InputGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashView s(layout_, call.stash);
    const backend::Output inner = s.Tensor(kInner), d_inner = Scratch(call, kDInner);
    const backend::Output d_norm = Scratch(call, kDNorm);
    const std::int64_t count = rows_ * config_.inner;
    if (InBf16()) {
      RETURN_IF_ERROR(mlp_projection_.InputGradBeforeGelu(backend, call.d_output_of_products(),
                                                          inner.bf16, d_inner.bf16));
      RETURN_IF_ERROR(fc_.InputGrad(backend, d_inner, d_norm));
      RETURN_IF_ERROR(LeaveToWeightGrad(call, d_inner, inner, count));
    } else {
      RETURN_IF_ERROR(mlp_projection_.InputGrad(backend, call.d_output, d_inner));
      RETURN_IF_ERROR(backend.Run(backend::GeluBackward{
          .input = inner, .d_output = d_inner, .d_input = inner, .count = count}));
      RETURN_IF_ERROR(fc_.InputGrad(backend, inner, d_norm));
    }
    NormGradients gradients{.dy = d_norm,
                            .x = s.Tensor(kMiddle),
                            .residual = call.d_output,
                            .dx = s.Tensor(kMiddle),
                            .rounded = rounds_ ? Scratch(call, kDMiddle).bf16 : nullptr,
                            .with_w = call.with_w};
    // The biases of both projections were added to what these two are gradients of.
    if (call.with_w.has_value()) {
      gradients.residual_bias = mlp_projection_.bias_gradient();
      gradients.dx_bias = projection_.bias_gradient();
    }
    return norm2_.InputGrad(backend, gradients, Norm2(s));
  }

  absl::Status AttentionInputGrad(const InputGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashView s(layout_, call.stash);
    const std::int64_t c = config_.hidden;
    const backend::Output qkv = s.Tensor(kQkv);
    const backend::Output d_qkv = Scratch(call, kDQkv);
    // First the d_output of attention, then that of the norm.
    const backend::Output d_norm = Scratch(call, kDNorm);
    const backend::Operand d_middle = rounds_ ? Scratch(call, kDMiddle) : s.Tensor(kMiddle);
    RETURN_IF_ERROR(projection_.InputGrad(backend, d_middle, d_norm));
    RETURN_IF_ERROR(AttendBackward(call, {.shape = Shape(),
                                          .q = qkv,
                                          .k = From(qkv, c),
                                          .v = From(qkv, 2 * c),
                                          .output = s.Tensor(kAttention),
                                          .logsumexp = s[kLogsumexp],
                                          .d_output = d_norm,
                                          .d_q = d_qkv,
                                          .d_k = From(d_qkv, c),
                                          .d_v = From(d_qkv, 2 * c),
                                          .starts = call.view.starts}));
    RETURN_IF_ERROR(qkv_.InputGrad(backend, d_qkv, d_norm));
    RETURN_IF_ERROR(LeaveToWeightGrad(call, d_qkv, qkv, rows_ * 3 * c));
    return norm1_.InputGrad(backend,
                            {.dy = d_norm,
                             .x = call.input,
                             .residual = s.Tensor(kMiddle),
                             .dx = call.d_input,
                             .rounded = call.d_input_rounded,
                             .with_w = call.with_w},
                            Norm1(s));
  }

  bool InBf16() const { return layout_[kInner].bf16; }

  backend::Output Scratch(const InputGradCall& call, model::Gpt2BlockScratch::Tensor tensor) const {
    return TensorAt(call.scratch + scratch_[tensor], InBf16());
  }

  static const ParameterRef* Refs(const LayerOptions& options) {
    return options.parameters.refs.data();
  }
  static NormStash Norm1(const StashView& s) {
    return {s.Tensor(kNorm1), s[kNorm1Stats], s[kNorm1Part]};
  }
  static NormStash Norm2(const StashView& s) {
    return {s.Tensor(kNorm2), s[kNorm2Stats], s[kNorm2Part]};
  }

  backend::AttentionShape Shape() const {
    return {.batch = batch_,
            .context = config_.context,
            .heads = config_.heads,
            .kv_heads = config_.heads,
            .head_size = config_.hidden / config_.heads,
            .q_stride = 3 * config_.hidden,
            .kv_stride = 3 * config_.hidden,
            .out_stride = config_.hidden};
  }

  const bool rounds_;  // norm2_ leaves its gradient in f32 and in bf16
  const LayerNorm norm1_;
  const Linear qkv_, projection_;
  const LayerNorm norm2_;
  const Linear fc_, mlp_projection_;
};

}  // namespace

std::unique_ptr<Layer> MakeGpt2Block(const LayerOptions& options) {
  return std::make_unique<Gpt2Block>(options);
}

}  // namespace takt::train
