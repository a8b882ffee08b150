// SPDX-License-Identifier: Apache-2.0
// Computes the embedding where tensor parallelism splits layers. Each rank has some words of the
// token table and all of the position table (if the family has one). It fills the rows of the
// tokens whose words it has, and the sum over the ranks, in which all other rows are -0.0, has the
// bits of the one rank that has the word. I gathers the gradient of the output, so that W has no
// meeting.
#include <algorithm>
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
        positions_(options.model.config.positions),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        meetings_(*options.meetings) {
    for (const ParameterRef& ref : options.parameters.refs)
      (ref.parameter->by_word ? token_table_ : position_table_) = &ref;
  }

  absl::Status Forward(const ForwardCall& call) const override {
    if (meetings_.share().size == 1) return RowsHere(call, call.output.f32);
    auto* const rows =
        reinterpret_cast<float*>(call.scratch + scratch_[SplitEmbeddingScratch::kRows]);
    RETURN_IF_ERROR(RowsHere(call, rows));
    RETURN_IF_ERROR(meetings_.ScatterRows(rows));
    return call.backend->Run(backend::Copy{.input = rows + meetings_.first_row() * columns_,
                                           .output = call.output,
                                           .count = meetings_.rows_here() * columns_});
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
    if (token_table_ == nullptr && position_table_ == nullptr) return absl::OkStatus();
    const std::vector<backend::Operand> d_output =
        call.Stashed(layout_, SplitEmbeddingStash::kOutputGrad);
    backend::EmbeddingBackward op{
        .d_token_table = token_table_ == nullptr ? nullptr : token_table_->gradient,
        .d_position_table = position_table_ == nullptr ? nullptr : position_table_->gradient,
        .batch = batch_,
        .context = context_,
        .columns = columns_,
        .vocab = std::max<std::int64_t>(NumWords(), 1),
        .positions = position_table_ == nullptr ? 0 : positions_,
        .accumulate = call.accumulate,
        .first_word = FirstWord()};
    for (std::size_t m = 0; m < d_output.size(); ++m) {
      const TokenView& view = call.microbatches[m].view;
      op.tokens = token_table_ == nullptr ? nullptr : view.tokens;
      op.d_output = d_output[m].f32;
      op.starts = view.starts;
      RETURN_IF_ERROR(call.backend->Run(op));
      op.accumulate = true;
    }
    return absl::OkStatus();
  }

 private:
  std::int64_t FirstWord() const { return token_table_ == nullptr ? 0 : token_table_->first_row; }
  std::int64_t NumWords() const {
    return token_table_ == nullptr ? 0 : token_table_->elements() / columns_;
  }

  // Fills `rows` [N,C] with the tokens whose words are here, and with -0.0.
  absl::Status RowsHere(const ForwardCall& call, float* rows) const {
    if (token_table_ == nullptr) {
      return call.backend->Run(
          backend::Fill{.output = rows, .value = -0.0F, .count = batch_ * context_ * columns_});
    }
    return call.backend->Run(backend::EmbeddingForward{
        .tokens = call.view.tokens,
        .token_table = token_table_->weight,
        .position_table = position_table_ == nullptr ? nullptr : position_table_->weight,
        .output = rows,
        .batch = batch_,
        .context = context_,
        .columns = columns_,
        .starts = call.view.starts,
        .first_word = FirstWord(),
        .num_words = NumWords()});
  }

  const std::int64_t context_, columns_, batch_, positions_;
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
