// SPDX-License-Identifier: Apache-2.0
#include "worker/train/spread_state.h"

#include <iterator>

#include "common/base/status.h"
#include "common/model/stash.h"
#include "common/model/vocabulary.h"

namespace takt::train {
namespace {

absl::Status CheckMeetings(const TrainerOptions& options, const ParameterStore& parameters) {
  const transport::Collective* const group = options.vocabulary_group;
  if (group == nullptr || group->size() != std::ssize(options.vocabulary_ends)) {
    return absl::InvalidArgumentError(
        "the vocabulary is spread over ranks that are not those of this rank's pipeline");
  }
  if (parameters.backend().memory_is_host()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the vocabulary is spread over devices, whose memory meetings cannot reach");
}

// Returns the one use of a table that a layer has among the rank's rows, or null.
const ParameterRef* RowsOf(const ParameterStore& parameters, std::size_t layer) {
  const LayerParameters* const rows = parameters.Rows(LayerId(static_cast<std::int32_t>(layer)));
  return rows == nullptr ? nullptr : &rows->refs.front();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpreadState>> SpreadState::Create(const TrainerOptions& options,
                                                                 const layout::RankLayout& layout,
                                                                 const ParameterStore& parameters,
                                                                 const Scratch& scratch) {
  const model::Model& model = *options.model;
  const PpRank root = options.partition->back().pp_rank;
  const PpRank first = options.partition->front().pp_rank;
  const PpRank self = options.program->pp_rank;
  const std::int64_t rows = std::int64_t{model.microbatch} * model.config.context;
  const std::int64_t columns = model.config.hidden;
  const bool norm_in_bf16 = model.layers.back().stash[model::HeadStash::kNorm].bf16;
  // Sums of several blocks are in f32.
  const bool one_block = model::NumVocabularyBlocks(model.config.vocab) == 1;
  std::unique_ptr<SpreadState> state(new SpreadState{
      .layout = *layout.vocabulary,
      .scratch = scratch,
      .is_root = self == root,
      .is_first = self == first,
      .elements = rows * columns,
      .norm_in_bf16 = norm_in_bf16,
      .sums_in_bf16 = norm_in_bf16 && one_block,
      .head =
          SpreadHead(model, layout.vocabulary->blocks, RowsOf(parameters, model.layers.size() - 1)),
      .table = RowsOf(parameters, 0),
      .foreseen_table = parameters.ForeseenRows()});
  if (state->foreseen_table.has_value()) {
    ASSIGN_OR_RETURN(state->rows_backend, options.backends->CreateCompute());
  }
  if (options.shapes_only) return state;
  RETURN_IF_ERROR(CheckMeetings(options, parameters));
  state->meetings.emplace(SpreadMeetings::Options{.group = options.vocabulary_group,
                                                  .ends = options.vocabulary_ends,
                                                  .root = root.value(),
                                                  .first = first.value(),
                                                  .rows = rows,
                                                  .columns = columns,
                                                  .vocab = model.config.vocab});
  return state;
}

}  // namespace takt::train
