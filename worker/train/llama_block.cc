// SPDX-License-Identifier: Apache-2.0
// x2 = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))),  n = RMS1(x)
// y  = x2 + down_proj(silu(gate_proj(n)) * up_proj(n)),                     n = RMS2(x2)
// Touvron et al. 2023; Qwen2 adds biases to q, k and v. Qwen3 has none, and applies an RMS norm to
// each head of q and k before rope. Attention of Mistral has a window (Jiang et al. 2023). Mixtral
// and Qwen3-MoE have experts (experts.h) in place of the MLP, which is the second line.
#include <initializer_list>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/model/llama.h"
#include "worker/train/block.h"
#include "worker/train/experts.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"
#include "worker/train/projections.h"

namespace takt::train {
namespace {

// The widths of rows.
struct Widths {
  std::int64_t inner, query, key;

  explicit Widths(const model::ModelConfig& config)
      : inner(config.inner),
        query(std::int64_t{config.heads} * config.head_size),
        key(std::int64_t{config.kv_heads} * config.head_size) {}
};

using enum model::LlamaBlockStash::Tensor;
using enum model::LlamaBlockScratch::Tensor;

constexpr auto kOutIn = Linear::Storage::kOutIn;

class LlamaBlock final : public Block {
 public:
  explicit LlamaBlock(const LayerOptions& options) : LlamaBlock(options, Parameters(options)) {}

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const auto s = [&](auto tensor) { return call.Stashed(layout_, tensor); };
    const bool add = call.accumulate, follows = call.follows_i;
    const auto d_middle = call.Rounded(layout_, kMiddle, scratch_[kDMiddle], rounds_);
    if (experts_.has_value()) {
      RETURN_IF_ERROR(experts_->WeightGrad(call));
    } else {
      RETURN_IF_ERROR(down_->WeightGrad(backend, s(kProduct), call.d_output(), add));
      RETURN_IF_ERROR(gate_up_->WeightGrad(backend, s(kNorm2), {s(kGate), s(kUp)}, add));
    }
    if (!follows) RETURN_IF_ERROR(norm2_.WeightGrad(backend, s(kNorm2Part), add));
    RETURN_IF_ERROR(o_.WeightGrad(backend, s(kAttention), d_middle, add));
    const auto left = [&](auto tensor, auto scratch) {
      return call.Left(layout_, tensor, scratch_[scratch]);
    };
    if (NormalisesHeads()) {
      if (!follows) {
        RETURN_IF_ERROR(k_norm_->WeightGrad(backend, s(kKNormPart), add));
        RETURN_IF_ERROR(q_norm_->WeightGrad(backend, s(kQNormPart), add));
      }
      RETURN_IF_ERROR(
          qkv_.WeightGrad(backend, s(kNorm1), {s(kRawQ), s(kRawK), left(kV, kDV)}, add));
    } else {
      RETURN_IF_ERROR(
          qkv_.WeightGrad(backend, s(kNorm1), {left(kQ, kDQ), left(kK, kDK), left(kV, kDV)}, add));
    }
    return follows ? absl::OkStatus() : norm1_.WeightGrad(backend, s(kNorm1Part), add);
  }

  bool StreamsBf16() const override { return layout_[kMiddle].bf16; }

 private:
  // The block's parameters by name, in the order of model::LlamaLayers. Each bias comes after its
  // weight, if there are biases. What the family does not have is null.
  struct Parameters {
    const ParameterRef *norm1, *q, *q_bias, *k, *k_bias, *v, *v_bias, *q_norm, *k_norm, *o, *norm2,
        *gate, *up, *down, *experts;  // experts: the first of their parameters

    explicit Parameters(const LayerOptions& options) {
      const ParameterRef* next = options.parameters.refs.data();
      const bool biases = options.model.config.family == model::Family::kQwen2;
      const bool head_norms = model::NormalisesHeads(options.model.config.family);
      const bool mixture = model::HasExperts(options.layer.kind);
      const auto bias = [&] { return biases ? next++ : nullptr; };
      const auto head_norm = [&] { return head_norms ? next++ : nullptr; };
      const auto of_mlp = [&] { return mixture ? nullptr : next++; };
      norm1 = next++;
      q = next++;
      q_bias = bias();
      k = next++;
      k_bias = bias();
      v = next++;
      v_bias = bias();
      q_norm = head_norm();
      k_norm = head_norm();
      o = next++;
      norm2 = next++;
      gate = of_mlp();
      up = of_mlp();
      down = of_mlp();
      experts = mixture ? next : nullptr;
    }
  };

  LlamaBlock(const LayerOptions& options, const Parameters& p)
      : Block(options),
        rounds_(options.model.precisions.RoundsGradientsOnce() && !StreamsBf16()),
        width_(config_),
        rotary_table_(options.rotary_table),
        norm1_(rows_, config_.norm_epsilon, {p.norm1, 1}),
        qkv_(rows_, {{p.q, p.q_bias}, {p.k, p.k_bias}, {p.v, p.v_bias}}),
        q_norm_(HeadNorm(rows_ * config_.heads, p.q_norm)),
        k_norm_(HeadNorm(rows_ * config_.kv_heads, p.k_norm)),
        o_(rows_, kOutIn, *p.o, nullptr),
        norm2_(rows_, config_.norm_epsilon, {p.norm2, 1}),
        q_stride_(qkv_.joined() ? width_.query + 2 * width_.key : width_.query),
        kv_stride_(qkv_.joined() ? q_stride_ : width_.key) {
    if (p.experts != nullptr) {
      experts_.emplace(options, p.experts);
    } else {
      gate_up_.emplace(rows_, std::initializer_list<Projections::Part>{{p.gate}, {p.up}});
      down_.emplace(rows_, kOutIn, *p.down, nullptr);
    }
  }

  absl::Status Output(const ForwardCall& call, const StashView& s) const override {
    if (experts_.has_value()) return experts_->Output(call, s, s[kMiddle]);
    return down_->Forward(*call.backend, s.Tensor(kProduct), s.Tensor(kMiddle), call.output);
  }

  absl::Status ForwardInside(const Pass& pass, bool products) const override {
    backend::Backend& backend = pass.backend;
    const StashView& s = pass.stash;
    RETURN_IF_ERROR(norm1_.Forward(backend, pass.input, Norm1(s)));
    const Heads heads = HeadsAt(s.Tensor(kQ), s.Tensor(kK), s.Tensor(kV));
    if (products) {
      const bool raw = NormalisesHeads();
      RETURN_IF_ERROR(
          qkv_.Forward(backend, s.Tensor(kNorm1),
                       {s.Tensor(raw ? kRawQ : kQ), s.Tensor(raw ? kRawK : kK), s.Tensor(kV)}));
    }
    if (NormalisesHeads()) {
      RETURN_IF_ERROR(q_norm_->Forward(backend, s[kRawQ], QNorm(s)));
      RETURN_IF_ERROR(k_norm_->Forward(backend, s[kRawK], KNorm(s)));
    }
    if (products || NormalisesHeads())
      RETURN_IF_ERROR(Turn(backend, pass.view, heads, /*inverse=*/false));
    if (products) {
      RETURN_IF_ERROR(Attend(pass, {.shape = Shape(),
                                    .q = heads.q,
                                    .k = heads.k,
                                    .v = heads.v,
                                    .output = s.Tensor(kAttention),
                                    .logsumexp = s[kLogsumexp],
                                    .starts = pass.view.starts}));
      RETURN_IF_ERROR(o_.Forward(backend, s.Tensor(kAttention), pass.input, s.Tensor(kMiddle)));
    }
    RETURN_IF_ERROR(norm2_.Forward(backend, s.Tensor(kMiddle), Norm2(s)));
    if (experts_.has_value()) {
      return experts_->Forward({.backend = &backend, .scratch = pass.scratch}, s, products);
    }
    if (products) {
      RETURN_IF_ERROR(
          gate_up_->Forward(backend, s.Tensor(kNorm2), {s.Tensor(kGate), s.Tensor(kUp)}));
    }
    return backend.Run(backend::SwigluForward{.gate = s.Tensor(kGate),
                                              .up = Up(s),
                                              .output = s.Tensor(kProduct),
                                              .rows = rows_,
                                              .columns = width_.inner,
                                              .stride = GateStride()});
  }

  // Returns where the values of up begin, and how far the rows of both lie apart (0: dense).
  backend::Output Up(const StashView& s) const {
    return gate_up_->joined() ? From(s.Tensor(kGate), width_.inner) : s.Tensor(kUp);
  }
  std::int64_t GateStride() const { return gate_up_->joined() ? 2 * width_.inner : 0; }

  // Queries, keys and values, or their gradients.
  struct Heads {
    backend::Output q, k, v;
  };
  // q, k, v: three tensors, of which the first has all if weights are joined.
  Heads HeadsAt(const backend::Output& q, const backend::Output& k,
                const backend::Output& v) const {
    if (!qkv_.joined()) return {q, k, v};
    return {q, From(q, width_.query), From(q, width_.query + width_.key)};
  }

  static NormStash Norm1(const StashView& s) {
    return {s.Tensor(kNorm1), s[kNorm1Stats], s[kNorm1Part]};
  }
  static NormStash Norm2(const StashView& s) {
    return {s.Tensor(kNorm2), s[kNorm2Stats], s[kNorm2Part]};
  }
  static NormStash QNorm(const StashView& s) {
    return {s.Tensor(kQ), s[kQNormStats], s[kQNormPart]};
  }
  static NormStash KNorm(const StashView& s) {
    return {s.Tensor(kK), s[kKNormStats], s[kKNormPart]};
  }

  bool NormalisesHeads() const { return q_norm_.has_value(); }

  // Returns a norm whose rows are single heads of tokens, or none if it has no weight.
  std::optional<RmsNorm> HeadNorm(std::int64_t rows, const ParameterRef* weight) const {
    if (weight == nullptr) return std::nullopt;
    return RmsNorm(rows, config_.norm_epsilon, {weight, 1});
  }

  // Returns where the gradient of a norm's output goes. is_one_product: it is no sum.
  backend::Output DNorm(const InputGradCall& call, bool is_one_product) const {
    return TensorAt(call.scratch + scratch_[kDNorm], is_one_product);
  }

  absl::Status MlpInputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    const backend::Output d_norm = DNorm(call, gate_up_.has_value() && gate_up_->joined());
    RETURN_IF_ERROR(experts_.has_value() ? experts_->InputGrad(call, s, d_norm.f32)
                                         : InputGradOfProducts(call, s, d_norm));
    return norm2_.InputGrad(*call.backend,
                            {.dy = d_norm,
                             .x = s.Tensor(kMiddle),
                             .residual = call.d_output,
                             .dx = s.Tensor(kMiddle),
                             .rounded = RoundedDMiddle(call),
                             .with_w = call.with_w},
                            Norm2(s));
  }

  // Returns where the second norm leaves its gradient in bf16, too; null: nowhere.
  backend::Bf16* RoundedDMiddle(const InputGradCall& call) const {
    return rounds_ ? reinterpret_cast<backend::Bf16*>(call.scratch + scratch_[kDMiddle]) : nullptr;
  }

  // Computes the gradient of the second norm's output through the products of the MLP.
  absl::Status InputGradOfProducts(const InputGradCall& call, const StashView& s,
                                   const backend::Output& d_norm) const {
    backend::Backend& backend = *call.backend;
    const backend::Output d_product =
        TensorAt(call.scratch + scratch_[kDProduct], layout_[kGate].bf16);
    RETURN_IF_ERROR(down_->InputGrad(backend, call.d_output_of_products(), d_product));
    RETURN_IF_ERROR(backend.Run(backend::SwigluBackward{.gate = s.Tensor(kGate),
                                                        .up = Up(s),
                                                        .d_output = d_product,
                                                        .d_gate = s.Tensor(kGate),
                                                        .d_up = Up(s),
                                                        .rows = rows_,
                                                        .columns = width_.inner,
                                                        .stride = GateStride()}));
    return gate_up_->InputGrad(backend, {s.Tensor(kGate), s.Tensor(kUp)}, d_norm);
  }

  absl::Status AttentionInputGrad(const InputGradCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashView s(layout_, call.stash);
    const bool bf16 = layout_[kQ].bf16;
    const backend::Output d_q = TensorAt(call.scratch + scratch_[kDQ], bf16);
    const backend::Output d_k = TensorAt(call.scratch + scratch_[kDK], bf16);
    const backend::Output d_v = TensorAt(call.scratch + scratch_[kDV], bf16);
    const backend::Output d_attention = TensorAt(call.scratch + scratch_[kDAttention], bf16);
    const backend::Output d_norm = DNorm(call, qkv_.joined());
    const Heads heads = HeadsAt(s.Tensor(kQ), s.Tensor(kK), s.Tensor(kV));
    const Heads d_heads = HeadsAt(d_q, d_k, d_v);
    const backend::Operand d_middle =
        rounds_ ? backend::Operand(RoundedDMiddle(call)) : s.Tensor(kMiddle);
    RETURN_IF_ERROR(o_.InputGrad(backend, d_middle, d_attention));
    RETURN_IF_ERROR(AttendBackward(call, {.shape = Shape(),
                                          .q = heads.q,
                                          .k = heads.k,
                                          .v = heads.v,
                                          .output = s.Tensor(kAttention),
                                          .logsumexp = s[kLogsumexp],
                                          .d_output = d_attention,
                                          .d_q = d_heads.q,
                                          .d_k = d_heads.k,
                                          .d_v = d_heads.v,
                                          .starts = call.view.starts}));
    RETURN_IF_ERROR(Turn(backend, call.view, d_heads, /*inverse=*/true));
    if (NormalisesHeads()) {
      RETURN_IF_ERROR(q_norm_->InputGrad(
          backend, {.dy = d_q, .x = s[kRawQ], .dx = s[kRawQ], .with_w = call.with_w}, QNorm(s)));
      RETURN_IF_ERROR(k_norm_->InputGrad(
          backend, {.dy = d_k, .x = s[kRawK], .dx = s[kRawK], .with_w = call.with_w}, KNorm(s)));
      RETURN_IF_ERROR(qkv_.InputGrad(backend, {s[kRawQ], s[kRawK], d_v}, d_norm));
    } else {
      RETURN_IF_ERROR(qkv_.InputGrad(backend, {d_q, d_k, d_v}, d_norm));
      RETURN_IF_ERROR(LeaveToWeightGrad(call, d_q, s.Tensor(kQ), rows_ * q_stride_));
    }
    if (!qkv_.joined()) {
      if (!NormalisesHeads())
        RETURN_IF_ERROR(LeaveToWeightGrad(call, d_k, s.Tensor(kK), rows_ * kv_stride_));
      RETURN_IF_ERROR(LeaveToWeightGrad(call, d_v, s.Tensor(kV), rows_ * kv_stride_));
    }
    return norm1_.InputGrad(backend,
                            {.dy = d_norm,
                             .x = call.input,
                             .residual = s.Tensor(kMiddle),
                             .dx = call.d_input,
                             .rounded = call.d_input_rounded,
                             .with_w = call.with_w},
                            Norm1(s));
  }

  // Applies rotary positions to q and k, or the inverse to their gradients.
  absl::Status Turn(backend::Backend& backend, const TokenView& view, const Heads& heads,
                    bool inverse) const {
    const std::int64_t first = view.cache != nullptr ? view.cache->past : 0;
    backend::Rotary op{.table = rotary_table_ + first * config_.head_size,
                       .batch = batch_,
                       .context = context_here_,
                       .head_size = config_.head_size,
                       .inverse = inverse,
                       .starts = PositionStarts(view.starts, context_)};
    op.x = heads.q;
    op.heads = config_.heads;
    op.stride = q_stride_;
    // The heads of k follow those of q in each row.
    if (qkv_.joined()) op.heads += config_.kv_heads;
    RETURN_IF_ERROR(backend.Run(op));
    if (qkv_.joined()) return absl::OkStatus();
    op.x = heads.k;
    op.heads = config_.kv_heads;
    op.stride = kv_stride_;
    return backend.Run(op);
  }

  backend::AttentionShape Shape() const {
    return {.batch = batch_,
            .context = config_.context,
            .heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .head_size = config_.head_size,
            .q_stride = q_stride_,
            .kv_stride = kv_stride_,
            .out_stride = width_.query,
            .window = config_.EffectiveWindow()};
  }

  const bool rounds_;  // norm2_ leaves its gradient in f32 and in bf16
  const Widths width_;
  const float* const rotary_table_;
  const RmsNorm norm1_;
  const Projections qkv_;
  const std::optional<RmsNorm> q_norm_, k_norm_;
  const Linear o_;
  const RmsNorm norm2_;
  const std::int64_t q_stride_, kv_stride_;  // elements between rows: of q; of k and v
  // The MLP, or the experts in its place. They are constant after construction.
  std::optional<Projections> gate_up_;
  std::optional<Linear> down_;
  std::optional<Experts> experts_;
};

}  // namespace

std::unique_ptr<Layer> MakeLlamaBlock(const LayerOptions& options) {
  return std::make_unique<LlamaBlock>(options);
}

}  // namespace takt::train
