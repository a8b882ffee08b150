// SPDX-License-Identifier: Apache-2.0
#include "worker/session/parameter_state.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "common/layout/rank_layout.h"

namespace takt::session {
namespace {

LayerId OwnerOf(const model::Model& model, const model::Parameter& parameter) {
  const auto owns = [&](const model::Layer& layer) {
    return std::ranges::any_of(layer.parameters,
                               [&](const model::Parameter& own) { return &own == &parameter; });
  };
  const auto it = std::ranges::find_if(model.layers, owns);
  return LayerId(static_cast<std::int32_t>(it - model.layers.begin()));
}

// View: ParameterState or ParameterTarget.
template <class View>
View ViewOf(const train::ParameterRef& ref) {
  const layout::FloatRun kept = ref.kept_run();
  return {.parameter = ref.parameter,
          .weight = {ref.kept_weights(), static_cast<std::size_t>(kept.count)},
          .m = ref.moment(ref.m),
          .v = ref.moment(ref.v),
          .last_update = ref.moment(ref.last_update),
          .first_row = ref.first_row,
          .first_weight = static_cast<std::size_t>(kept.first),
          .first_moment = static_cast<std::size_t>(ref.shard.first)};
}

std::vector<const train::LayerParameters*> WrittenLayers(train::ParameterStore& store, int replica,
                                                         int num_replicas) {
  store.SelectVersion(0);
  std::vector<const train::LayerParameters*> layers;
  for (const train::LayerParameters& layer : store.stage_layers()) {
    if (layer.primary && layout::WriterOf(layer.layer, num_replicas) == replica)
      layers.push_back(&layer);
  }
  return layers;
}

}  // namespace

std::vector<worker_checkpoint::LayerState> WrittenState(train::ParameterStore& store, int replica,
                                                        int num_replicas) {
  std::vector<worker_checkpoint::LayerState> layers;
  for (const train::LayerParameters* const layer : WrittenLayers(store, replica, num_replicas)) {
    worker_checkpoint::LayerState& state = layers.emplace_back();
    state.layer = layer->layer;
    for (const train::ParameterRef& ref : layer->refs) {
      if (ref.norm_index < 0) continue;  // another layer owns this weight
      state.parameters.push_back(ViewOf<worker_checkpoint::ParameterState>(ref));
    }
  }
  return layers;
}

std::vector<worker_checkpoint::LayerState> StateToCopy(const model::Model& model,
                                                       train::ParameterStore& store, int replica,
                                                       int num_replicas) {
  std::vector<worker_checkpoint::LayerState> layers;
  for (const train::LayerParameters* const layer : WrittenLayers(store, replica, num_replicas)) {
    worker_checkpoint::LayerState& state = layers.emplace_back();
    state.layer = layer->layer;
    const std::vector<model::Parameter>& own = model.layers[layer->layer.value()].parameters;
    for (const train::ParameterRef& ref : layer->refs) {
      if (ref.parameter < own.data() || ref.parameter >= own.data() + own.size()) continue;
      state.parameters.push_back(ViewOf<worker_checkpoint::ParameterState>(ref));
      state.parameters.back().room_rows = ref.rows;
    }
  }
  return layers;
}

std::vector<worker_checkpoint::LayerTarget> LoadTargets(const model::Model& model,
                                                        train::ParameterStore& store) {
  store.SelectVersion(0);
  std::map<LayerId, worker_checkpoint::LayerTarget> targets;
  for (const train::ParameterRef* const ref : store.trained()) {
    const LayerId owner = OwnerOf(model, *ref->parameter);
    worker_checkpoint::LayerTarget& target = targets[owner];
    target.layer = owner;
    target.parameters.push_back(ViewOf<worker_checkpoint::ParameterTarget>(*ref));
  }
  std::vector<worker_checkpoint::LayerTarget> list;
  for (auto& [owner, target] : targets) list.push_back(std::move(target));
  return list;
}

}  // namespace takt::session
