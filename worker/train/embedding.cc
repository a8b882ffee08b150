// SPDX-License-Identifier: Apache-2.0
// output = token table[token] (+ position table[position], if the family has one). It stashes
// nothing and has no input gradient.
#include "common/base/status.h"
#include "worker/train/layer.h"

namespace takt::train {
namespace {

class Embedding final : public Layer {
 public:
  explicit Embedding(const LayerOptions& options)
      : batch_(options.model.microbatch),
        config_(options.model.config),
        token_table_(options.parameters.refs[0]),
        position_table_(options.parameters.refs.size() > 1 ? &options.parameters.refs[1]
                                                           : nullptr) {}

  absl::Status Forward(const ForwardCall& call) const override {
    return call.backend->Run(backend::EmbeddingForward{
        .tokens = call.view.tokens,
        .token_table = token_table_.weight,
        .position_table = position_table_ != nullptr ? position_table_->weight : nullptr,
        .output = call.output,
        .batch = batch_,
        .context = config_.context,
        .columns = config_.hidden});
  }

  absl::Status Recompute(const RecomputeCall&) const override { return absl::OkStatus(); }
  absl::Status InputGrad(const InputGradCall&) const override { return absl::OkStatus(); }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    bool accumulate = call.accumulate;
    for (const WeightGradInput& microbatch : call.microbatches) {
      RETURN_IF_ERROR(call.backend->Run(backend::EmbeddingBackward{
          .tokens = microbatch.view.tokens,
          .d_output = microbatch.d_output,
          .d_token_table = token_table_.gradient,
          .d_position_table = position_table_ != nullptr ? position_table_->gradient : nullptr,
          .batch = batch_,
          .context = config_.context,
          .columns = config_.hidden,
          .vocab = config_.vocab,
          .positions = config_.positions,
          .accumulate = accumulate}));
      accumulate = true;
    }
    return absl::OkStatus();
  }

 private:
  const std::int64_t batch_;
  const model::ModelConfig& config_;
  const ParameterRef& token_table_;           // [V,C]
  const ParameterRef* const position_table_;  // [positions,C]; null: none
};

}  // namespace

std::unique_ptr<Layer> MakeEmbedding(const LayerOptions& options) {
  return std::make_unique<Embedding>(options);
}

}  // namespace takt::train
