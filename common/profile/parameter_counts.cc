// SPDX-License-Identifier: Apache-2.0
#include "common/profile/parameter_counts.h"

#include <string>

namespace takt::profile {
namespace {

// Returns whether the parameter is one of a layer's own on this rank.
bool Owns(const model::Model& model, const mesh::Partition& partition, PpRank rank,
          const model::Parameter* parameter) {
  for (const mesh::Stage& stage : partition) {
    if (stage.pp_rank != rank) continue;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      for (const model::Parameter& own : model.layers[i].parameters) {
        if (&own == parameter) return true;
      }
    }
  }
  return false;
}

double OwnElements(const model::Layer& layer) {
  double elements = 0;
  for (const model::Parameter& parameter : layer.parameters)
    elements += static_cast<double>(parameter.elements());
  return elements;
}

}  // namespace

std::vector<double> UpdatedParameters(const model::Model& model, const mesh::Partition& partition,
                                      int pp_size) {
  std::vector<double> counts(pp_size, 0.0);
  for (const mesh::Stage& stage : partition) {
    double& count = counts[stage.pp_rank.value()];
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      count += OwnElements(model.layers[i]);
      for (const std::string& name : model.layers[i].tied_parameters) {
        const model::Parameter* const tied = model.Find(name);
        if (!Owns(model, partition, stage.pp_rank, tied))
          count += static_cast<double>(tied->elements());
      }
    }
  }
  return counts;
}

double GradientElements(const model::Model& model, const model::Layer& layer) {
  double elements = OwnElements(layer);
  for (const std::string& name : layer.tied_parameters)
    elements += static_cast<double>(model.Find(name)->elements());
  return elements;
}

}  // namespace takt::profile
