// SPDX-License-Identifier: Apache-2.0
#include "worker/session/spread_tables.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/mesh/vocabulary_split.h"

namespace takt::session {
namespace {

using worker_checkpoint::LayerState;
using worker_checkpoint::ParameterState;
using worker_checkpoint::ParameterTarget;

// Returns the use of a parameter by the layer that owns it, or null if none of its rows are here.
const train::ParameterRef* RowsOf(const train::ParameterStore& store, LayerId layer,
                                  const model::Parameter& parameter) {
  const train::LayerParameters* const rows = store.Rows(layer);
  if (rows == nullptr) return nullptr;
  const auto ref = std::ranges::find(rows->refs, &parameter, &train::ParameterRef::parameter);
  return ref == rows->refs.end() ? nullptr : &*ref;
}

ParameterState StateOf(const model::Parameter& parameter, const train::ParameterRef* rows) {
  if (rows == nullptr) return {.parameter = &parameter};
  const auto count = static_cast<std::size_t>(rows->elements());
  return {.parameter = &parameter,
          .weight = {rows->weight, count},
          .m = rows->moment(rows->m),
          .v = rows->moment(rows->v),
          .first_row = rows->first_row};
}

}  // namespace

SpreadTables::SpreadTables(const control::Assignment& assignment, const model::Model& model,
                           const train::ParameterStore& store, transport::Collective& group)
    : assignment_(assignment), model_(model), store_(store), group_(group) {
  AddTables(LayerId(0));
  AddTables(LayerId(static_cast<std::int32_t>(model.layers.size()) - 1));
}

void SpreadTables::AddTables(LayerId layer) {
  const mesh::Mesh& mesh = assignment_.mesh;
  if (layout::WriterOf(layer, mesh.dp_size) != mesh.DpRankOf(assignment_.rank)) return;
  const mesh::Partition& partition = assignment_.partition;
  const auto stage = std::ranges::find_if(
      partition, [layer](const mesh::Stage& each) { return layer < each.last_layer; });
  TAKT_CHECK(stage != partition.end());
  for (const model::Parameter& parameter : model_.layers[layer.value()].parameters) {
    if (!parameter.by_word) continue;
    tables_.push_back({.layer = layer,
                       .parameter = &parameter,
                       .rows = RowsOf(store_, layer, parameter),
                       .writer = stage->pp_rank.value()});
  }
}

void SpreadTables::AddWritten(std::vector<LayerState>& layers) const {
  for (const Table& table : tables_) {
    if (!Writes(table)) continue;
    auto layer = std::ranges::find(layers, table.layer, &LayerState::layer);
    // A layer may have no other parameters.
    if (layer == layers.end()) layer = layers.insert(layer, LayerState{.layer = table.layer});
    layer->parameters.push_back(StateOf(*table.parameter, table.rows));
  }
}

absl::Status SpreadTables::Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const {
  for (const Table& table : tables_) {
    const model::Parameter& parameter = *table.parameter;
    const ParameterState mine = StateOf(parameter, table.rows);
    const ParameterTarget whole = Writes(table) ? snapshot.PlaceOf(parameter) : ParameterTarget();
    const std::int64_t vocab = parameter.shape[0], columns = parameter.shape[1];
    const auto pass = [&](std::span<const float> own, std::span<float> all) {
      std::vector<std::span<std::byte>> parts;
      for (PpRank rank(0); Writes(table) && rank.value() < group_.size(); ++rank) {
        const auto [first, words] = mesh::WordsOf(assignment_.vocabulary_ends, rank, vocab);
        parts.push_back(std::as_writable_bytes(all.subspan(
            static_cast<std::size_t>(first * columns), static_cast<std::size_t>(words * columns))));
      }
      return group_.SendTo(step, table.writer, std::as_bytes(own), parts);
    };
    RETURN_IF_ERROR(pass(mine.weight, whole.weight));
    if (parameter.moments >= 1) RETURN_IF_ERROR(pass(mine.m, whole.m));
    if (parameter.moments >= 2) RETURN_IF_ERROR(pass(mine.v, whole.v));
  }
  return absl::OkStatus();
}

}  // namespace takt::session
