// SPDX-License-Identifier: Apache-2.0
// gpt2_block.cc where tensor parallelism splits the block.
#include "common/base/status.h"
#include "worker/train/split_block.h"

namespace takt::train {
namespace {

using enum model::SplitGpt2Leaf::Tensor;
using enum model::SplitBlockScratch::Tensor;

class Gpt2Leaf final : public SplitLeaf {
 public:
  using Norm = LayerNorm;
  static std::size_t Norm2Of(const LayerOptions& /*options*/) { return 6; }
  static std::size_t NumTensors(const LayerOptions& /*options*/) { return kNumTensors; }

  Gpt2Leaf(const LayerOptions& options, int leaf)
      : Gpt2Leaf(options, LeafProducts(options, Linear::Storage::kInOut, leaf),
                 options.parameters.refs.data()) {}

  absl::Status AttentionForward(backend::Backend& backend, const backend::Operand& x,
                                const LeafMemory& m, bool products) const override {
    if (!products) return absl::OkStatus();
    const std::int64_t width = shape_.out_stride;
    const backend::Output qkv = m.Tensor(kQkv);
    RETURN_IF_ERROR(qkv_.Forward(backend, x, nullptr, qkv));
    return backend.Run(backend::AttentionForward{.shape = shape_,
                                                 .q = qkv,
                                                 .k = From(qkv, width),
                                                 .v = From(qkv, 2 * width),
                                                 .output = m.Tensor(kAttention),
                                                 .logsumexp = m[kLogsumexp],
                                                 .starts = m.starts()});
  }

  absl::Status AttentionOutput(backend::Backend& backend, const LeafMemory& m,
                               float* partial) const override {
    return projection_.Forward(backend, m.Tensor(kAttention), nullptr, partial);
  }

  absl::Status MlpForward(backend::Backend& backend, const backend::Operand& x, const LeafMemory& m,
                          bool products) const override {
    if (products) RETURN_IF_ERROR(fc_.Forward(backend, x, nullptr, m.Tensor(kInner)));
    return backend.Run(backend::GeluForward{
        .input = m.Tensor(kInner), .output = m.Tensor(kActivated), .count = inner_elements_});
  }

  absl::Status MlpOutput(backend::Backend& backend, const LeafMemory& m,
                         float* partial) const override {
    return mlp_projection_.Forward(backend, m.Tensor(kActivated), nullptr, partial);
  }

  absl::Status MlpInputGrad(backend::Backend& backend, const float* d_output, const LeafMemory& m,
                            float* partial) const override {
    const backend::Output inner = m.Tensor(kInner), d_inner = m.Scratch(kDInner, kInner);
    RETURN_IF_ERROR(mlp_projection_.InputGrad(backend, d_output, d_inner));
    RETURN_IF_ERROR(backend.Run(backend::GeluBackward{
        .input = inner, .d_output = d_inner, .d_input = inner, .count = inner_elements_}));
    return fc_.InputGrad(backend, inner, partial);
  }

  absl::Status AttentionInputGrad(backend::Backend& backend, const float* d_output,
                                  const LeafMemory& m, float* partial) const override {
    const std::int64_t width = shape_.out_stride;
    const backend::Output qkv = m.Tensor(kQkv), d_qkv = m.Scratch(kDQ, kQkv);
    const backend::Output d_attention = m.Scratch(kDAttention, kQkv);
    RETURN_IF_ERROR(projection_.InputGrad(backend, d_output, d_attention));
    RETURN_IF_ERROR(backend.Run(backend::AttentionBackward{.shape = shape_,
                                                           .q = qkv,
                                                           .k = From(qkv, width),
                                                           .v = From(qkv, 2 * width),
                                                           .output = m.Tensor(kAttention),
                                                           .logsumexp = m[kLogsumexp],
                                                           .d_output = d_attention,
                                                           .d_q = d_qkv,
                                                           .d_k = From(d_qkv, width),
                                                           .d_v = From(d_qkv, 2 * width),
                                                           .starts = m.starts()}));
    RETURN_IF_ERROR(qkv_.InputGrad(backend, d_qkv, partial));
    return backend.Run(
        backend::Copy{.input = d_qkv, .output = qkv, .count = rows_ * shape_.q_stride});
  }

  absl::Status WeightGrad(backend::Backend& backend,
                          const WeightGradInputs& inputs) const override {
    const auto& [norm1, norm2, d_attention, d_output, s, add] = inputs;
    RETURN_IF_ERROR(mlp_projection_.WeightGrad(backend, s(kActivated), d_output, add));
    constexpr auto kLater = Linear::BiasGradient::kLater;
    RETURN_IF_ERROR(fc_.WeightGrad(backend, norm2, s(kInner), add, kLater));
    RETURN_IF_ERROR(projection_.WeightGrad(backend, s(kAttention), d_attention, add, kLater));
    return qkv_.WeightGrad(backend, norm1, s(kQkv), add);
  }

 private:
  Gpt2Leaf(const LayerOptions& options, const LeafProducts& products, const ParameterRef* refs)
      : qkv_(products.Make(refs[2], &refs[3])),
        projection_(products.MakeSummed(refs[4], &refs[5])),
        fc_(products.Make(refs[8], &refs[9])),
        mlp_projection_(products.MakeSummed(refs[10], &refs[11])),
        shape_(ShapeOf(options.model)),
        rows_(shape_.batch * shape_.context),
        inner_elements_(rows_ * (options.model.config.inner / options.model.tensor.leaves)) {}

  static backend::AttentionShape ShapeOf(const model::Model& model) {
    const std::int64_t heads = model.config.heads / model.tensor.leaves;
    const std::int64_t width = heads * model.config.head_size;
    return {.batch = model.microbatch,
            .context = model.config.context,
            .heads = heads,
            .kv_heads = heads,
            .head_size = model.config.head_size,
            .q_stride = 3 * width,
            .kv_stride = 3 * width,
            .out_stride = width};
  }

  const Linear qkv_, projection_, fc_, mlp_projection_;
  const backend::AttentionShape shape_;
  const std::int64_t rows_, inner_elements_;
};

}  // namespace

std::unique_ptr<Layer> MakeSplitGpt2Block(const LayerOptions& options) {
  return std::make_unique<SplitBlock<Gpt2Leaf>>(options);
}

}  // namespace takt::train
