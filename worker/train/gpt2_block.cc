// SPDX-License-Identifier: Apache-2.0
// x2 = x + c_proj(attention(c_attn(ln_1(x))));  y = x2 + c_proj(gelu(c_fc(ln_2(x2))))
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/gpt2.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"

namespace takt::train {
namespace {

using enum model::Gpt2BlockStash::Tensor;

constexpr auto kInOut = Linear::Storage::kInOut;

class Gpt2Block final : public Layer {
 public:
  explicit Gpt2Block(const LayerOptions& options)
      : config_(options.model.config),
        layer_(options.layer),
        layout_(options.stash),
        batch_(options.model.microbatch),
        rows_(batch_ * config_.context),
        norm1_(rows_, config_.norm_epsilon, {Refs(options), 2}),
        qkv_(rows_, kInOut, Refs(options)[2], &Refs(options)[3]),
        projection_(rows_, kInOut, Refs(options)[4], &Refs(options)[5]),
        norm2_(rows_, config_.norm_epsilon, {Refs(options) + 6, 2}),
        fc_(rows_, kInOut, Refs(options)[8], &Refs(options)[9]),
        mlp_projection_(rows_, kInOut, Refs(options)[10], &Refs(options)[11]) {}

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    if (call.probe)
      call.probe(absl::StrCat("act.blocks.", layer_.block, ".input"), call.input,
                 ActivationFloats());
    RETURN_IF_ERROR(ForwardInside(*call.backend, call.input, s, /*products=*/true));
    return mlp_projection_.Forward(*call.backend, s.Factor(kActivated), s[kMiddle], call.output);
  }

  absl::Status Recompute(const RecomputeCall& call) const override {
    return ForwardInside(*call.backend, call.input, StashView(layout_, call.stash),
                         /*products=*/layout_.recompute() == model::Recompute::kFull);
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashView s(layout_, call.stash);
    auto* wide = reinterpret_cast<float*>(call.scratch);
    auto* narrow = reinterpret_cast<float*>(call.scratch + layer_.scratch.narrow_offset());

    RETURN_IF_ERROR(mlp_projection_.InputGrad(backend, call.d_output, wide));
    RETURN_IF_ERROR(backend.Run(backend::GeluBackward{.input = s[kInner],
                                                      .d_output = wide,
                                                      .d_input = s[kInner],
                                                      .count = rows_ * config_.inner}));
    RETURN_IF_ERROR(fc_.InputGrad(backend, s[kInner], narrow));
    RETURN_IF_ERROR(norm2_.InputGrad(
        backend, {.dy = narrow, .x = s[kMiddle], .residual = call.d_output, .dx = s[kMiddle]},
        Norm2(s)));

    RETURN_IF_ERROR(projection_.InputGrad(backend, s[kMiddle], narrow));
    RETURN_IF_ERROR(backend.Run(backend::AttentionBackward{.shape = Shape(),
                                                           .q = s[kQkv],
                                                           .k = s[kQkv] + config_.hidden,
                                                           .v = s[kQkv] + 2 * config_.hidden,
                                                           .output = s[kAttention],
                                                           .logsumexp = s[kLogsumexp],
                                                           .d_output = narrow,
                                                           .d_q = wide,
                                                           .d_k = wide + config_.hidden,
                                                           .d_v = wide + 2 * config_.hidden}));
    RETURN_IF_ERROR(qkv_.InputGrad(backend, wide, narrow));
    RETURN_IF_ERROR(backend.Run(
        backend::Copy{.input = wide, .output = s[kQkv], .count = rows_ * 3 * config_.hidden}));
    RETURN_IF_ERROR(norm1_.InputGrad(
        backend, {.dy = narrow, .x = call.input, .residual = s[kMiddle], .dx = call.d_input},
        Norm1(s)));
    if (call.probe)
      call.probe(absl::StrCat("act_grad.blocks.", layer_.block, ".input"), call.d_input,
                 ActivationFloats());
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const auto s = [&](auto tensor) { return call.Stashed(layout_, tensor); };
    const bool add = call.accumulate;
    RETURN_IF_ERROR(mlp_projection_.WeightGrad(backend, s(kActivated), call.d_output(), add));
    RETURN_IF_ERROR(fc_.WeightGrad(backend, s(kNorm2), s(kInner), add));
    RETURN_IF_ERROR(norm2_.WeightGrad(backend, s(kNorm2Part), add));
    RETURN_IF_ERROR(projection_.WeightGrad(backend, s(kAttention), s(kMiddle), add));
    RETURN_IF_ERROR(qkv_.WeightGrad(backend, s(kNorm1), s(kQkv), add));
    return norm1_.WeightGrad(backend, s(kNorm1Part), add);
  }

 private:
  // Everything but the block's output. products: false if those are still there.
  absl::Status ForwardInside(backend::Backend& backend, const float* input, const StashView& s,
                             bool products) const {
    RETURN_IF_ERROR(norm1_.Forward(backend, input, Norm1(s)));
    if (products) {
      RETURN_IF_ERROR(qkv_.Forward(backend, s.Factor(kNorm1), nullptr, s[kQkv]));
      RETURN_IF_ERROR(backend.Run(backend::AttentionForward{.shape = Shape(),
                                                            .q = s[kQkv],
                                                            .k = s[kQkv] + config_.hidden,
                                                            .v = s[kQkv] + 2 * config_.hidden,
                                                            .output = s[kAttention],
                                                            .logsumexp = s[kLogsumexp]}));
      RETURN_IF_ERROR(projection_.Forward(backend, s[kAttention], input, s[kMiddle]));
    }
    RETURN_IF_ERROR(norm2_.Forward(backend, s[kMiddle], Norm2(s)));
    if (products) RETURN_IF_ERROR(fc_.Forward(backend, s.Factor(kNorm2), nullptr, s[kInner]));
    return backend.Run(backend::GeluForward{
        .input = s[kInner], .output = s.Factor(kActivated), .count = rows_ * config_.inner});
  }

  static const ParameterRef* Refs(const LayerOptions& options) {
    return options.parameters.refs.data();
  }
  static NormStash Norm1(const StashView& s) {
    return {s.Factor(kNorm1), s[kNorm1Stats], s[kNorm1Part]};
  }
  static NormStash Norm2(const StashView& s) {
    return {s.Factor(kNorm2), s[kNorm2Stats], s[kNorm2Part]};
  }

  std::int64_t ActivationFloats() const { return rows_ * config_.hidden; }

  backend::AttentionShape Shape() const {
    return {.batch = batch_,
            .context = config_.context,
            .heads = config_.heads,
            .kv_heads = config_.heads,
            .head_size = config_.hidden / config_.heads,
            .q_stride = 3 * config_.hidden,
            .kv_stride = 3 * config_.hidden,
            .out_stride = config_.hidden,
            .bf16 = qkv_.in_bf16()};
  }

  const model::ModelConfig& config_;
  const model::Layer& layer_;
  const model::StashLayout layout_;
  const std::int64_t batch_, rows_;
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
