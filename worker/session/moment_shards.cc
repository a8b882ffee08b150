// SPDX-License-Identifier: Apache-2.0
#include "worker/session/moment_shards.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "worker/train/layer_shards.h"

namespace takt::session {

int MomentShards::WriterOf(const train::LayerParameters& layer) const {
  const int num_replicas = assignment_.mesh.num_replicas();
  const int replica = layout::WriterOf(layer.layer, num_replicas);
  const int copies = group_.size() / num_replicas;  // of each layer in a pipeline
  const int mine = layout::ShardPlaceOf(assignment_.program, /*replica=*/0, num_replicas).index;
  return copies * replica + (layer.primary ? mine : 1 - mine);
}

absl::Status MomentShards::Pass(StepId step, const Parameter& parameter, int number, int writer,
                                std::span<float> to) const {
  const train::ParameterRef& ref = parameter.ref;
  std::span<const float> mine = number == 0
                                    ? std::span(ref.kept, static_cast<std::size_t>(ref.shard.count))
                                    : ref.moment(number == 1 ? ref.m : ref.v);
  std::vector<float> on_host;
  if (!store_.backend().memory_is_host()) {
    on_host.resize(mine.size());
    RETURN_IF_ERROR(store_.backend().CopyToHost(reinterpret_cast<const std::byte*>(mine.data()),
                                                std::as_writable_bytes(std::span<float>(on_host))));
    RETURN_IF_ERROR(store_.backend().Synchronize());
    mine = on_host;
  }
  std::vector<std::span<std::byte>> parts;
  if (group_.index() == writer) {
    std::ranges::copy(mine, to.begin() + ref.shard.first);
    for (const layout::FloatRun& shard : parameter.unit.shards) {
      const auto [first, count] = layout::PartIn(shard, parameter.run);
      parts.push_back(std::as_writable_bytes(
          to.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
    }
  }
  return group_.SendTo(step, writer, std::as_bytes(mine), parts);
}

absl::Status MomentShards::Join(StepId step, const PlaceOf& place_of, Of of) const {
  for (const train::LayerParameters& layer : store_.stage_layers()) {
    const int writer = WriterOf(layer);
    for (const layout::ShardUnit& unit : train::ShardUnitsOf(layer, group_.size())) {
      for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
        const train::ParameterRef& ref = layer.refs[unit.first + i];
        // Another layer owns the weight, or another rank that splits the layer keeps it in files.
        const bool keeps = of == Of::kRank && ref.parameter->split.holder > 0;
        if (ref.norm_index < 0 && !keeps) continue;
        worker_checkpoint::ParameterTarget to;
        if (group_.index() == writer) to = place_of(layer.layer, *ref.parameter);
        const std::array parts = {to.weight, to.m, to.v};
        for (int number = ref.freed ? 0 : 1; number <= ref.parameter->moments; ++number) {
          RETURN_IF_ERROR(Pass(step, {unit, unit.tensors[i], ref}, number, writer,
                               parts[static_cast<std::size_t>(number)]));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MomentShards::JoinRows(StepId step, const train::LayerParameters& rows,
                                    const train::ParameterRef& table, int number,
                                    std::span<float> to) const {
  for (const layout::ShardUnit& unit : train::ShardUnitsOf(rows, group_.size())) {
    if (&rows.refs[unit.first] == &table)
      return Pass(step, {unit, unit.tensors.front(), table}, number, WriterOf(rows), to);
  }
  return absl::InternalError("the rank has no rows of this table");
}

}  // namespace takt::session
