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
          .first_row = rows->first_row,
          .first_moment = static_cast<std::size_t>(rows->shard.first)};
}

}  // namespace

SpreadTables::SpreadTables(const control::Assignment& assignment, const model::Model& model,
                           const train::ParameterStore& store, transport::Collective& group,
                           const MomentShards* moments)
    : assignment_(assignment), model_(model), store_(store), group_(group), moments_(moments) {
  AddTables(LayerId(0));
  AddTables(LayerId(static_cast<std::int32_t>(model.layers.size()) - 1));
}

void SpreadTables::AddTables(LayerId layer) {
  const mesh::Mesh& mesh = assignment_.mesh;
  const bool by_this_replica =
      layout::WriterOf(layer, mesh.num_replicas()) == mesh.ReplicaOf(assignment_.rank);
  const mesh::Partition& partition = assignment_.partition;
  const auto stage = std::ranges::find_if(
      partition, [layer](const mesh::Stage& each) { return layer < each.last_layer; });
  TAKT_CHECK(stage != partition.end());
  for (const model::Parameter& parameter : model_.layers[layer.value()].parameters) {
    if (!parameter.by_word) continue;
    tables_.push_back({.layer = layer,
                       .parameter = &parameter,
                       .rows = RowsOf(store_, layer, parameter),
                       .writer = stage->pp_rank.value(),
                       .by_this_replica = by_this_replica});
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

absl::Status SpreadTables::Pass(StepId step, const Table& table, std::span<const float> mine,
                                std::span<float> whole) const {
  const std::int64_t vocab = table.parameter->shape[0], columns = table.parameter->shape[1];
  std::vector<std::span<std::byte>> parts;
  for (PpRank rank(0); Writes(table) && rank.value() < group_.size(); ++rank) {
    const auto [first, words] = mesh::WordsOf(assignment_.vocabulary_ends, rank, vocab);
    parts.push_back(std::as_writable_bytes(whole.subspan(
        static_cast<std::size_t>(first * columns), static_cast<std::size_t>(words * columns))));
  }
  return group_.SendTo(step, table.writer, std::as_bytes(mine), parts);
}

absl::Status SpreadTables::PassMoment(StepId step, const Table& table, int number,
                                      std::span<float> whole) const {
  const train::ParameterRef* const rows = table.rows;
  std::span<const float> mine;
  std::vector<float> joined;  // of the rank's rows, where another rank writes them
  if (rows != nullptr && moments_ == nullptr) mine = rows->moment(number == 1 ? rows->m : rows->v);
  if (rows != nullptr && moments_ != nullptr) {
    const auto first = static_cast<std::size_t>(rows->first_element()),
               count = static_cast<std::size_t>(rows->elements());
    if (table.by_this_replica && !Writes(table)) joined.resize(count);
    const std::span<float> to = Writes(table) ? whole.subspan(first, count) : std::span(joined);
    RETURN_IF_ERROR(moments_->JoinRows(step, *store_.Rows(table.layer), *rows, number, to));
    mine = to;
  }
  return table.by_this_replica ? Pass(step, table, mine, whole) : absl::OkStatus();
}

absl::Status SpreadTables::Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const {
  for (const Table& table : tables_) {
    const ParameterState mine = StateOf(*table.parameter, table.rows);
    const ParameterTarget whole =
        Writes(table) ? snapshot.PlaceOf(*table.parameter) : ParameterTarget();
    if (table.by_this_replica) RETURN_IF_ERROR(Pass(step, table, mine.weight, whole.weight));
    for (int number = 1; number <= table.parameter->moments; ++number)
      RETURN_IF_ERROR(PassMoment(step, table, number, number == 1 ? whole.m : whole.v));
  }
  return absl::OkStatus();
}

}  // namespace takt::session
