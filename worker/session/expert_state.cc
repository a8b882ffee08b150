// SPDX-License-Identifier: Apache-2.0
#include "worker/session/expert_state.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/status.h"
#include "common/layout/rank_layout.h"

namespace takt::session {

using worker_checkpoint::LayerState;
using worker_checkpoint::ParameterState;
using worker_checkpoint::ParameterTarget;

ExpertState::ExpertState(const control::Assignment& assignment, const model::Model& model,
                         const train::ParameterStore& store, transport::Collective& group)
    : assignment_(assignment), model_(model), store_(store), group_(group) {
  TAKT_CHECK(group.size() == model.experts.size && group.index() == model.experts.index);
}

int ExpertState::OwnerOf(const model::Parameter& parameter) const {
  return parameter.expert / (model_.config.mixture->experts / group_.size());
}

void ExpertState::AddAway(std::vector<LayerState>& written) const {
  for (LayerState& layer : written) {
    std::vector<ParameterState> all;
    for (const model::Parameter& parameter : model_.layers[layer.layer.value()].parameters) {
      const auto here = std::ranges::find(layer.parameters, &parameter, &ParameterState::parameter);
      if (here != layer.parameters.end()) {
        all.push_back(*here);
      } else if (parameter.away) {
        all.push_back({.parameter = &parameter});
      }
    }
    layer.parameters = std::move(all);
  }
}

absl::Status ExpertState::Pass(StepId step, int owner, int writer, std::span<const float> mine,
                               std::span<float> whole) const {
  std::vector<std::span<std::byte>> parts;
  if (group_.index() == writer) {
    parts.resize(static_cast<std::size_t>(group_.size()));
    parts[static_cast<std::size_t>(owner)] = std::as_writable_bytes(whole);
  }
  backend::Backend& backend = store_.backend();
  if (backend.memory_is_host() || mine.empty())
    return group_.SendTo(step, writer, std::as_bytes(mine), parts);
  std::vector<float> on_host(mine.size());
  RETURN_IF_ERROR(backend.CopyToHost(reinterpret_cast<const std::byte*>(mine.data()),
                                     std::as_writable_bytes(std::span(on_host))));
  RETURN_IF_ERROR(backend.Synchronize());
  return group_.SendTo(step, writer, std::as_bytes(std::span<const float>(on_host)), parts);
}

absl::Status ExpertState::JoinParameter(StepId step, LayerId layer,
                                        const model::Parameter& parameter, int writer,
                                        const worker_checkpoint::Snapshot& snapshot) const {
  const int owner = OwnerOf(parameter);
  ParameterTarget whole;
  if (group_.index() == writer) whole = snapshot.PlaceOf(parameter);
  std::span<const float> weight, m, v;
  if (group_.index() == owner) {
    const std::vector<train::ParameterRef>& refs = store_.Layer(layer).refs;
    const auto ref = std::ranges::find(refs, &parameter, &train::ParameterRef::parameter);
    TAKT_CHECK(ref != refs.end());
    weight = {ref->weight, static_cast<std::size_t>(ref->elements())};
    m = ref->moment(ref->m);
    v = ref->moment(ref->v);
  }
  RETURN_IF_ERROR(Pass(step, owner, writer, weight, whole.weight));
  if (parameter.moments >= 1) RETURN_IF_ERROR(Pass(step, owner, writer, m, whole.m));
  if (parameter.moments >= 2) RETURN_IF_ERROR(Pass(step, owner, writer, v, whole.v));
  return absl::OkStatus();
}

absl::Status ExpertState::Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const {
  const mesh::Mesh& mesh = assignment_.mesh;
  const int size = group_.size();
  const int dp_rank = mesh.DpRankOf(assignment_.rank).value();
  for (const mesh::Stage& stage : assignment_.partition) {
    if (stage.pp_rank != mesh.PpRankOf(assignment_.rank)) continue;
    for (LayerId layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      const int writer = layout::WriterOf(layer, mesh.num_replicas());
      if (writer / size != dp_rank / size) continue;  // in another group
      for (const model::Parameter& parameter : model_.layers[layer.value()].parameters) {
        if (parameter.expert < 0 || OwnerOf(parameter) == writer % size) continue;
        RETURN_IF_ERROR(JoinParameter(step, layer, parameter, writer % size, snapshot));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::session
