// SPDX-License-Identifier: Apache-2.0
// Computes the embedding where tensor parallelism splits layers. Each rank has some words of the
// token table and all of the position table (if the family has one), and passes on the rows of
// tokens that it has. I gathers the gradient of the output, so that W meets nobody.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/model/split_stash.h"
#include "worker/train/layer.h"
#include "worker/train/tensor_meetings.h"

namespace takt::train {
namespace {

using model::SplitEmbeddingScratch;
using model::SplitEmbeddingStash;

class SplitEmbedding final : public Layer {
 public:
  explicit SplitEmbedding(const LayerOptions& options)
      : context_(options.model.config.context),
        columns_(options.model.config.hidden),
        batch_(options.model.microbatch),
        vocab_(options.model.config.vocab),
        positions_(options.model.config.positions),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        meetings_(*options.meetings) {
    for (const ParameterRef& ref : options.parameters.refs)
      (ref.parameter->by_word ? token_table_ : position_table_) = &ref;
  }

  absl::Status Forward(const ForwardCall& call) const override {
    const auto scratch = [&](SplitEmbeddingScratch::Tensor tensor) {
      return reinterpret_cast<float*>(call.scratch + scratch_[tensor]);
    };
    RETURN_IF_ERROR(meetings_.TokenRows(call.view.tokens, token_table_,
                                        scratch(SplitEmbeddingScratch::kSent),
                                        scratch(SplitEmbeddingScratch::kReceived), call.output));
    if (position_table_ == nullptr) return absl::OkStatus();
    // This rank's rows may begin and end within sequences. Positions count from the starts of
    // documents, and rows that follow each other in a document have positions that do.
    const auto start = [starts = call.view.starts](std::int64_t row) {
      return starts != nullptr ? starts[row] : 0;
    };
    const std::int64_t begin = meetings_.first_row(), end = begin + meetings_.rows_here();
    for (std::int64_t row = begin, next = 0; row < end; row = next) {
      next = row + 1;
      while (next < end && next % context_ != 0 && start(next) == start(row)) ++next;
      const std::int64_t position = row % context_ - start(row);
      float* const output = call.output + (row - begin) * columns_;
      RETURN_IF_ERROR(
          call.backend->Run(backend::Add{.a = output,
                                         .b = position_table_->weight + position * columns_,
                                         .output = output,
                                         .count = (next - row) * columns_}));
    }
    return absl::OkStatus();
  }

  absl::Status Recompute(const RecomputeCall&) const override { return absl::OkStatus(); }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    float* const gathered = s[SplitEmbeddingStash::kOutputGrad];
    RETURN_IF_ERROR(
        call.backend->Run(backend::Copy{.input = call.d_output,
                                        .output = gathered + meetings_.first_row() * columns_,
                                        .count = meetings_.rows_here() * columns_}));
    return meetings_.GatherRows(gathered);
  }

  // Each rank sums the rows of all positions, so all have the same gradient of these.
  absl::Status WeightGrad(const WeightGradCall& call) const override {
    const std::vector<backend::Operand> d_output =
        call.Stashed(layout_, SplitEmbeddingStash::kOutputGrad);
    bool accumulate = call.accumulate;
    for (std::size_t m = 0; m < d_output.size(); ++m) {
      if (token_table_ != nullptr) {
        meetings_.AddTokenGradients(call.microbatches[m].view.tokens, d_output[m].f32,
                                    *token_table_, accumulate);
      }
      RETURN_IF_ERROR(AddPositionGradients(*call.backend, d_output[m].f32,
                                           call.microbatches[m].view.starts, accumulate));
      accumulate = true;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddPositionGradients(backend::Backend& backend, const float* d_output,
                                    const std::int32_t* starts, bool accumulate) const {
    if (position_table_ == nullptr) return absl::OkStatus();
    return backend.Run(backend::EmbeddingBackward{.d_output = d_output,
                                                  .d_position_table = position_table_->gradient,
                                                  .batch = batch_,
                                                  .context = context_,
                                                  .columns = columns_,
                                                  .vocab = vocab_,
                                                  .positions = positions_,
                                                  .accumulate = accumulate,
                                                  .starts = starts});
  }

  const std::int64_t context_, columns_, batch_, vocab_, positions_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  TensorMeetings& meetings_;
  // Constant after construction.
  const ParameterRef* token_table_ = nullptr;     // null: this rank has no words
  const ParameterRef* position_table_ = nullptr;  // [positions,C]; null: none
};

}  // namespace

std::unique_ptr<Layer> MakeSplitEmbedding(const LayerOptions& options) {
  return std::make_unique<SplitEmbedding>(options);
}

}  // namespace takt::train
