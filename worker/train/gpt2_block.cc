// SPDX-License-Identifier: Apache-2.0
// x2 = x + c_proj(attention(c_attn(ln_1(x))));  y = x2 + c_proj(gelu(c_fc(ln_2(x2))))
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"
#include "worker/train/regions.h"

namespace takt::train {
namespace {

constexpr auto kInOut = Linear::Storage::kInOut;

// Offsets in floats. E: inner width, H heads. After the arrow: what I leaves there for W.
struct StashLayout {
  Regions regions;
  std::int64_t norm1;      // [N,C] ln_1's output
  std::int64_t qkv;        // [N,3C] -> its gradient
  std::int64_t attention;  // [N,C] heads side by side
  std::int64_t middle;     // [N,C] x2 -> its gradient
  std::int64_t norm2;      // [N,C] ln_2's output
  std::int64_t inner;      // [N,E] before gelu -> its gradient
  std::int64_t activated;  // [N,E] after gelu
  std::int64_t logsumexp;  // [B,H,T]
  LayerNorm::Stash norm1_stash, norm2_stash;

  StashLayout(std::int64_t n, std::int64_t c, std::int64_t e, std::int64_t heads)
      : norm1(regions.Add(n * c)),
        qkv(regions.Add(n * 3 * c)),
        attention(regions.Add(n * c)),
        middle(regions.Add(n * c)),
        norm2(regions.Add(n * c)),
        inner(regions.Add(n * e)),
        activated(regions.Add(n * e)),
        logsumexp(regions.Add(n * heads)),
        norm1_stash(regions, n, c),
        norm2_stash(regions, n, c) {}
};

class Gpt2Block final : public Layer {
 public:
  Gpt2Block(const model::Model& model, int block, const LayerParameters& parameters)
      : config_(model.config),
        block_(block),
        batch_(model.microbatch),
        rows_(batch_ * config_.context),
        layout_(rows_, config_.hidden, config_.inner, config_.heads),
        norm1_(rows_, config_.norm_epsilon, {parameters.refs.data(), 2}),
        qkv_(rows_, kInOut, parameters.refs[2], &parameters.refs[3]),
        projection_(rows_, kInOut, parameters.refs[4], &parameters.refs[5]),
        norm2_(rows_, config_.norm_epsilon, {parameters.refs.data() + 6, 2}),
        fc_(rows_, kInOut, parameters.refs[8], &parameters.refs[9]),
        mlp_projection_(rows_, kInOut, parameters.refs[10], &parameters.refs[11]) {}

  std::int64_t stash_floats() const override { return layout_.regions.size(); }
  // One wide tensor (the gradient of gelu's output, later of q k v) and one narrow one.
  std::int64_t scratch_floats() const override { return WideFloats() + rows_ * config_.hidden; }

  absl::Status Forward(const ForwardCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    float* s = call.stash;
    if (call.probe)
      call.probe(absl::StrCat("act.blocks.", block_, ".input"), call.input, ActivationFloats());
    RETURN_IF_ERROR(norm1_.Forward(backend, call.input, s + at.norm1, s, at.norm1_stash));
    RETURN_IF_ERROR(qkv_.Forward(backend, s + at.norm1, nullptr, s + at.qkv));
    RETURN_IF_ERROR(backend.Run(backend::AttentionForward{.shape = Shape(),
                                                          .q = s + at.qkv,
                                                          .k = s + at.qkv + config_.hidden,
                                                          .v = s + at.qkv + 2 * config_.hidden,
                                                          .output = s + at.attention,
                                                          .logsumexp = s + at.logsumexp}));
    RETURN_IF_ERROR(projection_.Forward(backend, s + at.attention, call.input, s + at.middle));
    RETURN_IF_ERROR(norm2_.Forward(backend, s + at.middle, s + at.norm2, s, at.norm2_stash));
    RETURN_IF_ERROR(fc_.Forward(backend, s + at.norm2, nullptr, s + at.inner));
    RETURN_IF_ERROR(backend.Run(backend::GeluForward{
        .input = s + at.inner, .output = s + at.activated, .count = rows_ * config_.inner}));
    return mlp_projection_.Forward(backend, s + at.activated, s + at.middle, call.output);
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    float* s = call.stash;
    float* wide = call.scratch;
    float* narrow = call.scratch + WideFloats();

    RETURN_IF_ERROR(mlp_projection_.InputGrad(backend, call.d_output, wide));
    RETURN_IF_ERROR(backend.Run(backend::GeluBackward{.input = s + at.inner,
                                                      .d_output = wide,
                                                      .d_input = s + at.inner,
                                                      .count = rows_ * config_.inner}));
    RETURN_IF_ERROR(fc_.InputGrad(backend, s + at.inner, narrow));
    RETURN_IF_ERROR(norm2_.InputGrad(
        backend, {.dy = narrow, .x = s + at.middle, .residual = call.d_output, .dx = s + at.middle},
        s, at.norm2_stash));

    RETURN_IF_ERROR(projection_.InputGrad(backend, s + at.middle, narrow));
    RETURN_IF_ERROR(backend.Run(backend::AttentionBackward{.shape = Shape(),
                                                           .q = s + at.qkv,
                                                           .k = s + at.qkv + config_.hidden,
                                                           .v = s + at.qkv + 2 * config_.hidden,
                                                           .output = s + at.attention,
                                                           .logsumexp = s + at.logsumexp,
                                                           .d_output = narrow,
                                                           .d_q = wide,
                                                           .d_k = wide + config_.hidden,
                                                           .d_v = wide + 2 * config_.hidden}));
    RETURN_IF_ERROR(qkv_.InputGrad(backend, wide, narrow));
    RETURN_IF_ERROR(backend.Run(
        backend::Copy{.input = wide, .output = s + at.qkv, .count = rows_ * 3 * config_.hidden}));
    RETURN_IF_ERROR(norm1_.InputGrad(
        backend, {.dy = narrow, .x = call.input, .residual = s + at.middle, .dx = call.d_input}, s,
        at.norm1_stash));
    if (call.probe)
      call.probe(absl::StrCat("act_grad.blocks.", block_, ".input"), call.d_input,
                 ActivationFloats());
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    const float* s = call.stash;
    const bool add = call.accumulate;
    RETURN_IF_ERROR(mlp_projection_.WeightGrad(backend, s + at.activated, call.d_output, add));
    RETURN_IF_ERROR(fc_.WeightGrad(backend, s + at.norm2, s + at.inner, add));
    RETURN_IF_ERROR(norm2_.WeightGrad(backend, s, at.norm2_stash, add));
    RETURN_IF_ERROR(projection_.WeightGrad(backend, s + at.attention, s + at.middle, add));
    RETURN_IF_ERROR(qkv_.WeightGrad(backend, s + at.norm1, s + at.qkv, add));
    return norm1_.WeightGrad(backend, s, at.norm1_stash, add);
  }

 private:
  std::int64_t ActivationFloats() const { return rows_ * config_.hidden; }
  std::int64_t WideFloats() const {
    return rows_ * std::max<std::int64_t>(config_.inner, 3 * config_.hidden);
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

  const model::ModelConfig& config_;
  const int block_;
  const std::int64_t batch_, rows_;
  const StashLayout layout_;
  const LayerNorm norm1_;
  const Linear qkv_, projection_;
  const LayerNorm norm2_;
  const Linear fc_, mlp_projection_;
};

}  // namespace

std::unique_ptr<Layer> MakeGpt2Block(const model::Model& model, int block,
                                     const LayerParameters& parameters) {
  return std::make_unique<Gpt2Block>(model, block, parameters);
}

}  // namespace takt::train
