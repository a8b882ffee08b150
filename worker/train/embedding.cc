// SPDX-License-Identifier: Apache-2.0
// output = token table[token] (+ position table[position], if the family has one). It stashes
// nothing. Where the token table is on this rank it has no input gradient; where the vocabulary is
// spread, its input is the rows of that table, and I passes on their gradient.
#include "common/base/status.h"
#include "worker/train/context_meetings.h"
#include "worker/train/layer.h"

namespace takt::train {
namespace {

class Embedding final : public Layer {
 public:
  explicit Embedding(const LayerOptions& options)
      : batch_(options.model.microbatch),
        context_here_(options.model.context_here()),
        config_(options.model.config),
        streams_bf16_(options.model.precisions.stream() == model::Precision::kBf16),
        token_table_(options.parameters.refs[0]),
        position_table_(options.parameters.refs.size() > 1 ? &options.parameters.refs[1] : nullptr),
        context_(options.context) {}

  absl::Status Forward(const ForwardCall& call) const override {
    return call.backend->Run(backend::EmbeddingForward{.tokens = call.view.tokens,
                                                       .token_table = token_table_.weight,
                                                       .position_table = Positions(call.view.cache),
                                                       .output = call.output,
                                                       .batch = batch_,
                                                       .context = context_here_,
                                                       .columns = config_.hidden,
                                                       .starts = StartsOf(call.view)});
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
          .context = context_here_,
          .columns = config_.hidden,
          .vocab = config_.vocab,
          .positions = config_.positions,
          .accumulate = accumulate,
          .starts = StartsOf(microbatch.view)}));
      accumulate = true;
    }
    return absl::OkStatus();
  }

  bool StreamsBf16() const override { return streams_bf16_; }

 private:
  const std::int32_t* StartsOf(const TokenView& view) const {
    return PositionStarts(view.starts, context_);
  }
  // Returns the rows of the position table from the first token's position on; null: none.
  const float* Positions(const KeyValueCache* cache) const {
    if (position_table_ == nullptr) return nullptr;
    return position_table_->weight + (cache != nullptr ? cache->past * config_.hidden : 0);
  }

  const std::int64_t batch_;
  const std::int64_t context_here_;  // tokens of each sequence
  const model::ModelConfig& config_;
  const bool streams_bf16_;
  const ParameterRef& token_table_;           // [V,C]
  const ParameterRef* const position_table_;  // [positions,C]; null: none
  const ContextMeetings* const context_;      // null: no other rank has tokens of these sequences
};

// The embedding of a rank that gets the rows of the token table from their owners.
class EmbeddingOfRows final : public Layer {
 public:
  explicit EmbeddingOfRows(const LayerOptions& options)
      : batch_(options.model.microbatch),
        config_(options.model.config),
        position_table_(options.parameters.refs.empty() ? nullptr
                                                        : &options.parameters.refs.front()) {}

  absl::Status Forward(const ForwardCall& call) const override {
    if (position_table_ == nullptr) return CopyAll(*call.backend, call.input.f32, call.output.f32);
    return call.backend->Run(backend::EmbeddingForward{.token_table = call.input.f32,
                                                       .position_table = position_table_->weight,
                                                       .output = call.output.f32,
                                                       .batch = batch_,
                                                       .context = config_.context,
                                                       .columns = config_.hidden,
                                                       .starts = call.view.starts});
  }

  absl::Status Recompute(const RecomputeCall&) const override { return absl::OkStatus(); }
  absl::Status InputGrad(const InputGradCall& call) const override {
    return CopyAll(*call.backend, call.d_output.f32, call.d_input.f32);
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    if (position_table_ == nullptr) return absl::OkStatus();
    bool accumulate = call.accumulate;
    for (const WeightGradInput& microbatch : call.microbatches) {
      RETURN_IF_ERROR(call.backend->Run(
          backend::EmbeddingBackward{.d_output = microbatch.d_output.f32,
                                     .d_position_table = position_table_->gradient,
                                     .batch = batch_,
                                     .context = config_.context,
                                     .columns = config_.hidden,
                                     .vocab = config_.vocab,
                                     .positions = config_.positions,
                                     .accumulate = accumulate,
                                     .starts = microbatch.view.starts}));
      accumulate = true;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CopyAll(backend::Backend& backend, const float* from, float* to) const {
    const std::int64_t count = batch_ * config_.context * config_.hidden;
    return backend.Run(backend::Copy{.input = from, .output = to, .count = count});
  }

  const std::int64_t batch_;
  const model::ModelConfig& config_;
  const ParameterRef* const position_table_;  // [positions,C]; null: none
};

}  // namespace

std::unique_ptr<Layer> MakeEmbedding(const LayerOptions& options) {
  const std::vector<ParameterRef>& refs = options.parameters.refs;
  if (refs.empty() || !refs.front().parameter->by_word)
    return std::make_unique<EmbeddingOfRows>(options);
  return std::make_unique<Embedding>(options);
}

}  // namespace takt::train
