// SPDX-License-Identifier: Apache-2.0
// x2 = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n))),  n = RMS1(x)
// y  = x2 + down_proj(silu(gate_proj(n)) * up_proj(n)),                     n = RMS2(x2)
// Touvron et al. 2023; Qwen2 adds biases to q, k and v.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/llama.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"
#include "worker/train/regions.h"

namespace takt::train {
namespace {

// Widths of a row.
struct Widths {
  std::int64_t hidden, inner, query, key;

  explicit Widths(const model::ModelConfig& config)
      : hidden(config.hidden),
        inner(config.inner),
        query(std::int64_t{config.heads} * config.head_size),
        key(std::int64_t{config.kv_heads} * config.head_size) {}
};

// Offsets in floats. Q, K: widths of query and key; E: inner width, H heads. After the arrow: what
// I leaves there for W.
struct StashLayout {
  Regions regions;
  std::int64_t norm1;      // [N,C] RMS1's output
  std::int64_t q, k, v;    // [N,Q], [N,K] turned, [N,K] -> their gradients
  std::int64_t attention;  // [N,Q] heads side by side
  std::int64_t middle;     // [N,C] x2 -> its gradient
  std::int64_t norm2;      // [N,C] RMS2's output
  std::int64_t gate, up;   // [N,E] -> their gradients
  std::int64_t product;    // [N,E] silu(gate) * up
  std::int64_t logsumexp;  // [B,H,T]
  RmsNorm::Stash norm1_stash, norm2_stash;

  StashLayout(std::int64_t n, const Widths& w, std::int64_t heads)
      : norm1(regions.Add(n * w.hidden)),
        q(regions.Add(n * w.query)),
        k(regions.Add(n * w.key)),
        v(regions.Add(n * w.key)),
        attention(regions.Add(n * w.query)),
        middle(regions.Add(n * w.hidden)),
        norm2(regions.Add(n * w.hidden)),
        gate(regions.Add(n * w.inner)),
        up(regions.Add(n * w.inner)),
        product(regions.Add(n * w.inner)),
        logsumexp(regions.Add(n * heads)),
        norm1_stash(regions, n, w.hidden),
        norm2_stash(regions, n, w.hidden) {}
};

// [T,D]: of each position the D/2 cosines, then the D/2 sines. Angles in double.
std::vector<float> RotaryTable(const model::ModelConfig& config) {
  const std::vector<double> frequencies = model::RotaryFrequencies(config);
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(config.context) * config.head_size);
  for (int t = 0; t < config.context; ++t) {
    for (const double f : frequencies) table.push_back(static_cast<float>(std::cos(t * f)));
    for (const double f : frequencies) table.push_back(static_cast<float>(std::sin(t * f)));
  }
  return table;
}

constexpr auto kOutIn = Linear::Storage::kOutIn;

class LlamaBlock final : public Layer {
 public:
  LlamaBlock(const model::Model& model, int block, const LayerParameters& parameters)
      : LlamaBlock(model, block, Parameters(parameters.refs)) {}

  std::int64_t stash_floats() const override { return layout_.regions.size(); }
  std::int64_t scratch_floats() const override { return WideFloats() + NarrowFloats(); }

  absl::Status Forward(const ForwardCall& call) const override {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    float* s = call.stash;
    if (call.probe)
      call.probe(absl::StrCat("act.blocks.", block_, ".input"), call.input, ActivationFloats());
    RETURN_IF_ERROR(norm1_.Forward(backend, call.input, s + at.norm1, s, at.norm1_stash));
    RETURN_IF_ERROR(q_.Forward(backend, s + at.norm1, nullptr, s + at.q));
    RETURN_IF_ERROR(k_.Forward(backend, s + at.norm1, nullptr, s + at.k));
    RETURN_IF_ERROR(v_.Forward(backend, s + at.norm1, nullptr, s + at.v));
    RETURN_IF_ERROR(Turn(backend, s + at.q, s + at.k, /*inverse=*/false));
    RETURN_IF_ERROR(backend.Run(backend::AttentionForward{.shape = Shape(),
                                                          .q = s + at.q,
                                                          .k = s + at.k,
                                                          .v = s + at.v,
                                                          .output = s + at.attention,
                                                          .logsumexp = s + at.logsumexp}));
    RETURN_IF_ERROR(o_.Forward(backend, s + at.attention, call.input, s + at.middle));
    RETURN_IF_ERROR(norm2_.Forward(backend, s + at.middle, s + at.norm2, s, at.norm2_stash));
    RETURN_IF_ERROR(gate_.Forward(backend, s + at.norm2, nullptr, s + at.gate));
    RETURN_IF_ERROR(up_.Forward(backend, s + at.norm2, nullptr, s + at.up));
    RETURN_IF_ERROR(backend.Run(backend::SwigluForward{.gate = s + at.gate,
                                                       .up = s + at.up,
                                                       .output = s + at.product,
                                                       .count = rows_ * width_.inner}));
    return down_.Forward(backend, s + at.product, s + at.middle, call.output);
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    RETURN_IF_ERROR(MlpInputGrad(call));
    RETURN_IF_ERROR(AttentionInputGrad(call));
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
    RETURN_IF_ERROR(down_.WeightGrad(backend, s + at.product, call.d_output, add));
    RETURN_IF_ERROR(up_.WeightGrad(backend, s + at.norm2, s + at.up, add));
    RETURN_IF_ERROR(gate_.WeightGrad(backend, s + at.norm2, s + at.gate, add));
    RETURN_IF_ERROR(norm2_.WeightGrad(backend, s, at.norm2_stash, add));
    RETURN_IF_ERROR(o_.WeightGrad(backend, s + at.attention, s + at.middle, add));
    RETURN_IF_ERROR(v_.WeightGrad(backend, s + at.norm1, s + at.v, add));
    RETURN_IF_ERROR(k_.WeightGrad(backend, s + at.norm1, s + at.k, add));
    RETURN_IF_ERROR(q_.WeightGrad(backend, s + at.norm1, s + at.q, add));
    return norm1_.WeightGrad(backend, s, at.norm1_stash, add);
  }

 private:
  // The block's parameters by name, in the order of model::LlamaLayers; biases come after their
  // weights if there are any.
  struct Parameters {
    const ParameterRef *norm1, *q, *q_bias, *k, *k_bias, *v, *v_bias, *o, *norm2, *gate, *up, *down;

    explicit Parameters(const std::vector<ParameterRef>& refs) {
      const ParameterRef* next = refs.data();
      const bool biases = refs.size() == 12;
      const auto bias = [&] { return biases ? next++ : nullptr; };
      norm1 = next++;
      q = next++;
      q_bias = bias();
      k = next++;
      k_bias = bias();
      v = next++;
      v_bias = bias();
      o = next++;
      norm2 = next++;
      gate = next++;
      up = next++;
      down = next;
    }
  };

  LlamaBlock(const model::Model& model, int block, const Parameters& p)
      : config_(model.config),
        block_(block),
        batch_(model.microbatch),
        rows_(batch_ * config_.context),
        width_(config_),
        layout_(rows_, width_, config_.heads),
        rotary_table_(RotaryTable(config_)),
        norm1_(rows_, config_.norm_epsilon, {p.norm1, 1}),
        q_(rows_, kOutIn, *p.q, p.q_bias),
        k_(rows_, kOutIn, *p.k, p.k_bias),
        v_(rows_, kOutIn, *p.v, p.v_bias),
        o_(rows_, kOutIn, *p.o, nullptr),
        norm2_(rows_, config_.norm_epsilon, {p.norm2, 1}),
        gate_(rows_, kOutIn, *p.gate, nullptr),
        up_(rows_, kOutIn, *p.up, nullptr),
        down_(rows_, kOutIn, *p.down, nullptr) {}

  absl::Status MlpInputGrad(const InputGradCall& call) const {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    float* s = call.stash;
    float* d_product = call.scratch;
    float* d_norm = call.scratch + WideFloats();
    RETURN_IF_ERROR(down_.InputGrad(backend, call.d_output, d_product));
    RETURN_IF_ERROR(backend.Run(backend::SwigluBackward{.gate = s + at.gate,
                                                        .up = s + at.up,
                                                        .d_output = d_product,
                                                        .d_gate = s + at.gate,
                                                        .d_up = s + at.up,
                                                        .count = rows_ * width_.inner}));
    RETURN_IF_ERROR(gate_.InputGrad(backend, s + at.gate, d_norm));
    RETURN_IF_ERROR(up_.InputGrad(backend, s + at.up, d_norm, d_norm));
    return norm2_.InputGrad(
        backend, {.dy = d_norm, .x = s + at.middle, .residual = call.d_output, .dx = s + at.middle},
        s, at.norm2_stash);
  }

  absl::Status AttentionInputGrad(const InputGradCall& call) const {
    backend::Backend& backend = *call.backend;
    const StashLayout& at = layout_;
    float* s = call.stash;
    float* d_q = call.scratch;
    float* d_k = d_q + rows_ * width_.query;
    float* d_v = d_k + rows_ * width_.key;
    float* narrow = call.scratch + WideFloats();  // d_output of attention, then of the norm
    RETURN_IF_ERROR(o_.InputGrad(backend, s + at.middle, narrow));
    RETURN_IF_ERROR(backend.Run(backend::AttentionBackward{.shape = Shape(),
                                                           .q = s + at.q,
                                                           .k = s + at.k,
                                                           .v = s + at.v,
                                                           .output = s + at.attention,
                                                           .logsumexp = s + at.logsumexp,
                                                           .d_output = narrow,
                                                           .d_q = d_q,
                                                           .d_k = d_k,
                                                           .d_v = d_v}));
    RETURN_IF_ERROR(Turn(backend, d_q, d_k, /*inverse=*/true));
    RETURN_IF_ERROR(q_.InputGrad(backend, d_q, narrow));
    RETURN_IF_ERROR(k_.InputGrad(backend, d_k, narrow, narrow));
    RETURN_IF_ERROR(v_.InputGrad(backend, d_v, narrow, narrow));
    RETURN_IF_ERROR(Keep(backend, d_q, s + at.q, rows_ * width_.query));
    RETURN_IF_ERROR(Keep(backend, d_k, s + at.k, rows_ * width_.key));
    RETURN_IF_ERROR(Keep(backend, d_v, s + at.v, rows_ * width_.key));
    return norm1_.InputGrad(
        backend, {.dy = narrow, .x = call.input, .residual = s + at.middle, .dx = call.d_input}, s,
        at.norm1_stash);
  }

  static absl::Status Keep(backend::Backend& backend, const float* from, float* to,
                           std::int64_t count) {
    return backend.Run(backend::Copy{.input = from, .output = to, .count = count});
  }

  // Rotary positions of q and k, or the way back for their gradients.
  absl::Status Turn(backend::Backend& backend, float* q, float* k, bool inverse) const {
    backend::Rotary op{.table = rotary_table_.data(),
                       .batch = batch_,
                       .context = config_.context,
                       .head_size = config_.head_size,
                       .inverse = inverse};
    op.x = q;
    op.heads = config_.heads;
    op.stride = width_.query;
    RETURN_IF_ERROR(backend.Run(op));
    op.x = k;
    op.heads = config_.kv_heads;
    op.stride = width_.key;
    return backend.Run(op);
  }

  std::int64_t ActivationFloats() const { return rows_ * width_.hidden; }
  std::int64_t WideFloats() const {
    return rows_ * std::max(width_.inner, width_.query + 2 * width_.key);
  }
  std::int64_t NarrowFloats() const { return rows_ * std::max(width_.hidden, width_.query); }

  backend::AttentionShape Shape() const {
    return {.batch = batch_,
            .context = config_.context,
            .heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .head_size = config_.head_size,
            .q_stride = width_.query,
            .kv_stride = width_.key,
            .out_stride = width_.query};
  }

  const model::ModelConfig& config_;
  const int block_;
  const std::int64_t batch_, rows_;
  const Widths width_;
  const StashLayout layout_;
  const std::vector<float> rotary_table_;  // host memory
  const RmsNorm norm1_;
  const Linear q_, k_, v_, o_;
  const RmsNorm norm2_;
  const Linear gate_, up_, down_;
};

}  // namespace

std::unique_ptr<Layer> MakeLlamaBlock(const model::Model& model, int block,
                                      const LayerParameters& parameters) {
  return std::make_unique<LlamaBlock>(model, block, parameters);
}

}  // namespace takt::train
