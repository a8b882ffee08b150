// SPDX-License-Identifier: Apache-2.0
// llama_block.cc where tensor parallelism splits the block. Where there are fewer key/value heads
// than leaves, several leaves have the same one; each computes with it by itself.
#include <algorithm>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "worker/train/split_block.h"

namespace takt::train {
namespace {

using enum model::SplitLlamaLeaf::Tensor;
using enum model::SplitBlockScratch::Tensor;

class LlamaLeaf final : public SplitLeaf {
 public:
  using Norm = RmsNorm;
  static std::size_t Norm2Of(const LayerOptions& options) {
    return static_cast<std::size_t>(Parameters(options).norm2 - options.parameters.refs.data());
  }
  static std::size_t NumTensors(const LayerOptions& options) {
    return options.layer.kind == model::LayerKind::kQwen3Block ? kNumTensorsOfQwen3 : kNumTensors;
  }

  LlamaLeaf(const LayerOptions& options, int leaf)
      : LlamaLeaf(options, LeafProducts(options, Linear::Storage::kOutIn, leaf),
                  Parameters(options), leaf) {}

  absl::Status AttentionForward(backend::Backend& backend, const backend::Operand& x,
                                const LeafMemory& m, bool products) const override {
    const bool norms = q_norm_.has_value();
    if (products) {
      RETURN_IF_ERROR(q_.Forward(backend, x, nullptr, m.Tensor(norms ? kRawQ : kQ)));
      RETURN_IF_ERROR(k_.Forward(backend, x, nullptr, m.Tensor(norms ? kRawK : kK)));
      RETURN_IF_ERROR(v_.Forward(backend, x, nullptr, m.Tensor(kV)));
    }
    if (norms) {
      RETURN_IF_ERROR(q_norm_->norm.Forward(backend, m[kRawQ], QNorm(m)));
      RETURN_IF_ERROR(k_norm_->norm.Forward(backend, m[kRawK], KNorm(m)));
    }
    if (products || norms)
      RETURN_IF_ERROR(Turn(backend, m.Tensor(kQ), m.Tensor(kK), m.starts(), /*inverse=*/false));
    if (!products) return absl::OkStatus();
    return backend.Run(backend::AttentionForward{.shape = shape_,
                                                 .q = m.Tensor(kQ),
                                                 .k = m.Tensor(kK),
                                                 .v = m.Tensor(kV),
                                                 .output = m.Tensor(kAttention),
                                                 .logsumexp = m[kLogsumexp],
                                                 .starts = m.starts()});
  }

  absl::Status AttentionOutput(backend::Backend& backend, const LeafMemory& m,
                               float* partial) const override {
    return o_.Forward(backend, m.Tensor(kAttention), nullptr, partial);
  }

  absl::Status MlpForward(backend::Backend& backend, const backend::Operand& x, const LeafMemory& m,
                          bool products) const override {
    if (products) {
      RETURN_IF_ERROR(gate_.Forward(backend, x, nullptr, m.Tensor(kGate)));
      RETURN_IF_ERROR(up_.Forward(backend, x, nullptr, m.Tensor(kUp)));
    }
    return backend.Run(backend::SwigluForward{.gate = m.Tensor(kGate),
                                              .up = m.Tensor(kUp),
                                              .output = m.Tensor(kProduct),
                                              .rows = rows_,
                                              .columns = inner_});
  }

  absl::Status MlpOutput(backend::Backend& backend, const LeafMemory& m,
                         float* partial) const override {
    return down_.Forward(backend, m.Tensor(kProduct), nullptr, partial);
  }

  absl::Status MlpInputGrad(backend::Backend& backend, const float* d_output, const LeafMemory& m,
                            float* partial) const override {
    const backend::Output gate = m.Tensor(kGate), up = m.Tensor(kUp);
    const backend::Output d_product = m.Scratch(kDInner, kGate);
    RETURN_IF_ERROR(down_.InputGrad(backend, d_output, d_product));
    RETURN_IF_ERROR(backend.Run(backend::SwigluBackward{.gate = gate,
                                                        .up = up,
                                                        .d_output = d_product,
                                                        .d_gate = gate,
                                                        .d_up = up,
                                                        .rows = rows_,
                                                        .columns = inner_}));
    RETURN_IF_ERROR(gate_.InputGrad(backend, gate, partial));
    return up_.InputGrad(backend, up, partial, partial);
  }

  absl::Status AttentionInputGrad(backend::Backend& backend, const float* d_output,
                                  const LeafMemory& m, float* partial) const override {
    const backend::Output d_q = m.Scratch(kDQ, kQ), d_k = m.Scratch(kDK, kQ);
    const backend::Output d_v = m.Scratch(kDV, kQ);
    const backend::Output d_attention = m.Scratch(kDAttention, kQ);
    RETURN_IF_ERROR(o_.InputGrad(backend, d_output, d_attention));
    RETURN_IF_ERROR(backend.Run(backend::AttentionBackward{.shape = shape_,
                                                           .q = m.Tensor(kQ),
                                                           .k = m.Tensor(kK),
                                                           .v = m.Tensor(kV),
                                                           .output = m.Tensor(kAttention),
                                                           .logsumexp = m[kLogsumexp],
                                                           .d_output = d_attention,
                                                           .d_q = d_q,
                                                           .d_k = d_k,
                                                           .d_v = d_v,
                                                           .starts = m.starts()}));
    RETURN_IF_ERROR(Turn(backend, d_q, d_k, m.starts(), /*inverse=*/true));
    RETURN_IF_ERROR(LeaveQueryAndKey(backend, d_q, d_k, m));
    RETURN_IF_ERROR(q_.InputGrad(backend, m.Tensor(QueryGrad()), partial));
    RETURN_IF_ERROR(k_.InputGrad(backend, m.Tensor(KeyGrad()), partial, partial));
    RETURN_IF_ERROR(v_.InputGrad(backend, d_v, partial, partial));
    return backend.Run(
        backend::Copy{.input = d_v, .output = m.Tensor(kV), .count = rows_ * shape_.kv_stride});
  }

  absl::Status WeightGrad(backend::Backend& backend,
                          const WeightGradInputs& inputs) const override {
    const auto& [norm1, norm2, d_attention, d_output, s, add] = inputs;
    RETURN_IF_ERROR(down_.WeightGrad(backend, s(kProduct), d_output, add));
    RETURN_IF_ERROR(up_.WeightGrad(backend, norm2, s(kUp), add));
    RETURN_IF_ERROR(gate_.WeightGrad(backend, norm2, s(kGate), add));
    RETURN_IF_ERROR(o_.WeightGrad(backend, s(kAttention), d_attention, add));
    RETURN_IF_ERROR(v_.WeightGrad(backend, norm1, s(kV), add));
    if (q_norm_.has_value()) {
      RETURN_IF_ERROR(AddNormParts(backend, k_norm_->weight, s(kKNormPart), gradient_, 1, add));
      RETURN_IF_ERROR(AddNormParts(backend, q_norm_->weight, s(kQNormPart), gradient_, 1, add));
    }
    RETURN_IF_ERROR(k_.WeightGrad(backend, norm1, s(KeyGrad()), add));
    return q_.WeightGrad(backend, norm1, s(QueryGrad()), add);
  }

 private:
  // The block's parameters by name, in the order of model::LlamaLayers. What the family does not
  // have is null.
  struct Parameters {
    const ParameterRef *norm1, *q, *q_bias, *k, *k_bias, *v, *v_bias, *q_norm, *k_norm, *o, *norm2,
        *gate, *up, *down;

    explicit Parameters(const LayerOptions& options) {
      const ParameterRef* next = options.parameters.refs.data();
      const bool biases = options.model.config.family == model::Family::kQwen2;
      const bool head_norms = options.layer.kind == model::LayerKind::kQwen3Block;
      const auto bias = [&] { return biases ? next++ : nullptr; };
      const auto head_norm = [&] { return head_norms ? next++ : nullptr; };
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
      gate = next++;
      up = next++;
      down = next;
    }
  };

  // A norm whose rows are single heads of tokens.
  struct HeadNorm {
    std::span<const ParameterRef> weight;
    RmsNorm norm;
  };

  LlamaLeaf(const LayerOptions& options, const LeafProducts& products, const Parameters& p,
            int leaf)
      : q_(products.Make(*p.q, p.q_bias)),
        k_(products.Make(*p.k, p.k_bias)),
        v_(products.Make(*p.v, p.v_bias)),
        o_(products.MakeSummed(*p.o, nullptr)),
        gate_(products.Make(*p.gate, nullptr)),
        up_(products.Make(*p.up, nullptr)),
        down_(products.MakeSummed(*p.down, nullptr)),
        gradient_(leaf % options.model.tensor.leaves_here()),
        shape_(ShapeOf(options.model)),
        rows_(shape_.batch * shape_.context),
        inner_(options.model.config.inner / options.model.tensor.leaves),
        rotary_table_(options.rotary_table) {
    if (p.q_norm == nullptr) return;
    const double epsilon = options.model.config.norm_epsilon;
    const std::span<const ParameterRef> of_q(p.q_norm, 1), of_k(p.k_norm, 1);
    q_norm_.emplace(HeadNorm{of_q, RmsNorm(rows_ * shape_.heads, epsilon, of_q)});
    k_norm_.emplace(HeadNorm{of_k, RmsNorm(rows_ * shape_.kv_heads, epsilon, of_k)});
  }

  static backend::AttentionShape ShapeOf(const model::Model& model) {
    const model::ModelConfig& config = model.config;
    const std::int64_t heads = config.heads / model.tensor.leaves;
    const std::int64_t kv_heads = std::max(1, config.kv_heads / model.tensor.leaves);
    return {.batch = model.microbatch,
            .context = config.context,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_size = config.head_size,
            .q_stride = heads * config.head_size,
            .kv_stride = kv_heads * config.head_size,
            .out_stride = heads * config.head_size,
            .window = config.EffectiveWindow()};
  }

  static NormStash QNorm(const LeafMemory& m) {
    return {m.Tensor(kQ), m[kQNormStats], m[kQNormPart]};
  }
  static NormStash KNorm(const LeafMemory& m) {
    return {m.Tensor(kK), m[kKNormStats], m[kKNormPart]};
  }
  // Returns where I leaves the gradients of the products for queries and keys.
  model::SplitLlamaLeaf::Tensor QueryGrad() const { return q_norm_.has_value() ? kRawQ : kQ; }
  model::SplitLlamaLeaf::Tensor KeyGrad() const { return k_norm_.has_value() ? kRawK : kK; }

  absl::Status LeaveQueryAndKey(backend::Backend& backend, const backend::Output& d_q,
                                const backend::Output& d_k, const LeafMemory& m) const {
    if (q_norm_.has_value()) {
      RETURN_IF_ERROR(
          q_norm_->norm.InputGrad(backend, {.dy = d_q, .x = m[kRawQ], .dx = m[kRawQ]}, QNorm(m)));
      return k_norm_->norm.InputGrad(backend, {.dy = d_k, .x = m[kRawK], .dx = m[kRawK]}, KNorm(m));
    }
    RETURN_IF_ERROR(backend.Run(
        backend::Copy{.input = d_q, .output = m.Tensor(kQ), .count = rows_ * shape_.q_stride}));
    return backend.Run(
        backend::Copy{.input = d_k, .output = m.Tensor(kK), .count = rows_ * shape_.kv_stride});
  }

  // Applies rotary positions to q and k, or the inverse to their gradients.
  absl::Status Turn(backend::Backend& backend, const backend::Output& q, const backend::Output& k,
                    const std::int32_t* starts, bool inverse) const {
    backend::Rotary op{.table = rotary_table_,
                       .batch = shape_.batch,
                       .context = shape_.context,
                       .head_size = shape_.head_size,
                       .inverse = inverse,
                       .starts = starts};
    op.x = q;
    op.heads = shape_.heads;
    op.stride = shape_.q_stride;
    RETURN_IF_ERROR(backend.Run(op));
    op.x = k;
    op.heads = shape_.kv_heads;
    op.stride = shape_.kv_stride;
    return backend.Run(op);
  }

  const Linear q_, k_, v_, o_, gate_, up_, down_;
  const int gradient_;  // the number of the leaf on its rank
  const backend::AttentionShape shape_;
  const std::int64_t rows_, inner_;
  const float* const rotary_table_;
  std::optional<HeadNorm> q_norm_, k_norm_;  // constant after construction
};

}  // namespace

std::unique_ptr<Layer> MakeSplitLlamaBlock(const LayerOptions& options) {
  return std::make_unique<SplitBlock<LlamaLeaf>>(options);
}

}  // namespace takt::train
