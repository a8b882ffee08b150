// SPDX-License-Identifier: Apache-2.0
#include "common/layout/parameter_layout.h"

#include <array>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "common/layout/regions.h"

namespace takt::layout {
namespace {

using model::Parameter;

constexpr std::int64_t kFloatBytes = 4, kBf16Bytes = 2;

// Returns the layer's own parameters in the model's order, then the tied ones.
std::vector<const Parameter*> Uses(const model::Model& model, const model::Layer& layer) {
  std::vector<const Parameter*> uses;
  for (const Parameter& parameter : layer.parameters) uses.push_back(&parameter);
  for (const std::string& name : layer.tied_parameters) uses.push_back(model.Find(name));
  return uses;
}

class ParameterLayout {
 public:
  ParameterLayout(const model::Model& model, int num_versions)
      : model_(model), num_versions_(num_versions) {}

  Section Run(std::span<const LayerId> layers) && {
    for (const LayerId layer : layers) AddLayer(layer);
    if (model_.precisions.products == model::Precision::kBf16) {
      for (const LayerId layer : layers) AddPacked(layer);
    }
    return std::move(section_);
  }

 private:
  void AddLayer(LayerId layer) {
    std::vector<Tensor> gradients, weights;
    Regions gradient, state;
    for (const Parameter* const parameter : Uses(model_, LayerOf(layer))) {
      Tensor tensor{
          .layer = layer, .parameter = parameter, .bytes = kFloatBytes * parameter->elements()};
      tensor.offset = gradient.Add(tensor.bytes);
      gradients.push_back(tensor);
      if (!here_.insert(parameter).second) continue;
      tensor.offset = state.Add(tensor.bytes);
      weights.push_back(tensor);
    }
    AddTensors(Role::kGradient, section_.Allocate(MemoryKind::kGradients, gradient.size()),
               gradients);
    const int allocation = section_.Allocate(MemoryKind::kWeights, num_versions_ * state.size());
    for (int version = 0; version < num_versions_; ++version)
      AddTensors(Role::kWeight, allocation, weights, version, version * state.size());
    for (const Role role : {Role::kFirstMoment, Role::kSecondMoment})
      AddTensors(role, section_.Allocate(MemoryKind::kOptimizer, state.size()), weights);
  }

  // Adds a tensor of this role for each of `tensors`, so many bytes behind it.
  void AddTensors(Role role, int allocation, std::span<const Tensor> tensors, int version = 0,
                  std::int64_t behind = 0) {
    for (Tensor tensor : tensors) {
      tensor.role = role;
      tensor.allocation = allocation;
      tensor.version = version;
      tensor.offset += behind;
      section_.tensors.push_back(tensor);
    }
  }

  void AddPacked(LayerId layer) {
    for (const Parameter* const parameter : Uses(model_, LayerOf(layer))) {
      if (!LayerOf(layer).MultipliesBy(*parameter)) continue;
      const std::int64_t rows = parameter->shape[0], columns = parameter->shape[1];
      const std::array orders = {
          std::pair(Role::kPackedWeight, kBf16Bytes * PackedElements(rows, columns)),
          std::pair(Role::kPackedTransposedWeight, kBf16Bytes * PackedElements(columns, rows))};
      const int allocation = section_.Allocate(
          MemoryKind::kWeights, num_versions_ * (orders[0].second + orders[1].second));
      std::int64_t offset = 0;
      for (int version = 0; version < num_versions_; ++version) {
        for (const auto& [role, bytes] : orders) {
          section_.tensors.push_back({.role = role,
                                      .layer = layer,
                                      .parameter = parameter,
                                      .version = version,
                                      .allocation = allocation,
                                      .offset = offset,
                                      .bytes = bytes});
          offset += bytes;
        }
      }
    }
  }

  const model::Layer& LayerOf(LayerId layer) const { return model_.layers[layer.value()]; }

  const model::Model& model_;
  const int num_versions_;
  std::set<const Parameter*> here_;  // the parameters whose weights have a place
  Section section_{.name = "parameters"};
};

}  // namespace

Section LayOutParameters(const model::Model& model, const std::vector<LayerId>& layers,
                         int num_versions) {
  return ParameterLayout(model, num_versions).Run(layers);
}

}  // namespace takt::layout
