// SPDX-License-Identifier: Apache-2.0
#include "worker/train/parameter_store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace takt::train {
namespace {

int NormIndex(const model::Model& model, const model::Parameter* parameter) {
  const std::vector<const model::Parameter*> all = model.AllParameters();
  const auto it = std::find(all.begin(), all.end(), parameter);
  TAKT_CHECK(it != all.end());
  return static_cast<int>(it - all.begin());
}

// Returns the uses of one layer, without memory.
std::vector<ParameterRef> Uses(const model::Model& model, LayerId id) {
  const model::Layer& layer = model.layers[id.value()];
  std::vector<ParameterRef> refs;
  for (const model::Parameter& parameter : layer.parameters) {
    refs.push_back({.parameter = &parameter, .norm_index = NormIndex(model, &parameter)});
  }
  for (const std::string& name : layer.tied_parameters)
    refs.push_back({.parameter = model.Find(name)});
  return refs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const model::Model& model, const layout::Section& parameters, backend::Backend& backend,
    const std::set<LayerId>& second_copies) {
  auto store = std::unique_ptr<ParameterStore>(new ParameterStore);
  store->backend_ = &backend;
  for (const model::Layer& layer : model.layers) {
    if (!layer.tied_parameters.empty()) store->tied_name_ = layer.tied_parameters.front();
  }
  ASSIGN_OR_RETURN(store->memory_, SectionMemory::Create(parameters, backend));
  std::set<LayerId> layers;
  for (const layout::Tensor& tensor : parameters.tensors) {
    layers.insert(tensor.layer);
    store->num_versions_ = std::max(store->num_versions_, tensor.version + 1);
  }
  store->layers_.reserve(layers.size());  // layers refer to the elements
  for (const LayerId layer : layers) {
    store->layers_.push_back(
        {.layer = layer, .primary = !second_copies.contains(layer), .refs = Uses(model, layer)});
    store->places_.emplace_back(store->layers_.back().refs.size());
  }
  for (const layout::Tensor& tensor : parameters.tensors) {
    const auto allocation = static_cast<std::size_t>(tensor.allocation);
    store->Resolve(tensor, parameters.allocations[allocation]);
  }
  store->ShareWeights();
  store->ShowVersion(0);
  return store;
}

void ParameterStore::Resolve(const layout::Tensor& tensor, const layout::Allocation& allocation) {
  const auto layer = std::ranges::find(layers_, tensor.layer, &LayerParameters::layer);
  const auto ref = std::ranges::find(layer->refs, tensor.parameter, &ParameterRef::parameter);
  Places& places = places_[layer - layers_.begin()][ref - layer->refs.begin()];
  std::byte* const at = memory_.At(tensor);
  auto* const floats = reinterpret_cast<float*>(at);
  auto* const halves = reinterpret_cast<backend::Bf16*>(at);
  switch (tensor.role) {
    case layout::Role::kGradient:
      ref->gradient = floats;
      if (tensor.offset == 0)
        layer->gradients = {floats, static_cast<std::size_t>(allocation.bytes) / sizeof(float)};
      break;
    case layout::Role::kWeight:
      places.weight.push_back(floats);
      break;
    case layout::Role::kFirstMoment:
      ref->m = floats;
      break;
    case layout::Role::kSecondMoment:
      ref->v = floats;
      break;
    case layout::Role::kPackedWeight:
      places.packed.push_back(halves);
      break;
    case layout::Role::kPackedTransposedWeight:
      places.packed_transposed.push_back(halves);
      break;
    default:
      TAKT_CHECK(false && "a section of parameters has a tensor of another role");
  }
}

void ParameterStore::ShareWeights() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      if (!places_[i][j].weight.empty()) continue;
      const model::Parameter* const parameter = layers_[i].refs[j].parameter;
      for (std::size_t owner = 0; owner < i; ++owner) {
        const std::vector<ParameterRef>& refs = layers_[owner].refs;
        const auto ref = std::ranges::find(refs, parameter, &ParameterRef::parameter);
        if (ref == refs.end()) continue;
        places_[i][j].weight = places_[owner][ref - refs.begin()].weight;
        break;
      }
    }
  }
}

void ParameterStore::SelectVersion(int version) {
  TAKT_CHECK(version >= 0 && version < num_versions_);
  if (version != selected_) ShowVersion(version);
}

void ParameterStore::BeginUpdate() {
  newest_ = (newest_ + num_versions_ - 1) % num_versions_;
  ShowVersion(0);
  const std::size_t before = PlaceOf(num_versions_ > 1 ? 1 : 0);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      layers_[i].refs[j].previous = places_[i][j].weight[before];
    }
  }
}

absl::Status ParameterStore::Pack(backend::Backend& backend) { return PackVersion(backend, 0); }

absl::Status ParameterStore::PackVersion(backend::Backend& backend, int version) {
  const std::size_t place = PlaceOf(version);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      const Places& places = places_[i][j];
      if (places.packed.empty()) continue;
      const std::vector<std::int64_t>& shape = layers_[i].refs[j].parameter->shape;
      RETURN_IF_ERROR(backend.Run(backend::PackBf16{.b = places.weight[place],
                                                    .packed = places.packed[place],
                                                    .k = shape[0],
                                                    .n = shape[1]}));
      RETURN_IF_ERROR(backend.Run(backend::PackBf16{.b = places.weight[place],
                                                    .transposed = true,
                                                    .packed = places.packed_transposed[place],
                                                    .k = shape[1],
                                                    .n = shape[0]}));
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::SpreadNewest(backend::Backend& backend) {
  ShowVersion(0);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      const ParameterRef& ref = layers_[i].refs[j];
      if (ref.m == nullptr) continue;
      for (int version = 1; version < num_versions_; ++version) {
        RETURN_IF_ERROR(backend.Run(backend::Copy{.input = ref.weight,
                                                  .output = places_[i][j].weight[PlaceOf(version)],
                                                  .count = ref.parameter->elements()}));
      }
    }
  }
  for (int version = 1; version < num_versions_; ++version) {
    RETURN_IF_ERROR(PackVersion(backend, version));
  }
  return absl::OkStatus();
}

void ParameterStore::ShowVersion(int version) {
  selected_ = version;
  const std::size_t place = PlaceOf(version);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      ParameterRef& ref = layers_[i].refs[j];
      const Places& places = places_[i][j];
      ref.weight = places.weight[place];
      if (places.packed.empty()) continue;
      ref.packed = places.packed[place];
      ref.packed_transposed = places.packed_transposed[place];
    }
  }
}

const LayerParameters& ParameterStore::Layer(LayerId layer) const {
  const auto it = std::find_if(layers_.begin(), layers_.end(),
                               [&](const LayerParameters& l) { return l.layer == layer; });
  TAKT_CHECK(it != layers_.end());
  return *it;
}

const ParameterRef* ParameterStore::Find(std::string_view name) const {
  for (const LayerParameters& layer : layers_) {
    for (const ParameterRef& ref : layer.refs) {
      if (ref.m != nullptr && ref.parameter->name == name) return &ref;
    }
  }
  return nullptr;
}

ParameterStore::TiedUses ParameterStore::tied_uses() const {
  TiedUses uses;
  for (const LayerParameters& layer : layers_) {
    for (const ParameterRef& ref : layer.refs) {
      if (ref.parameter->name == tied_name_) (ref.norm_index >= 0 ? uses.own : uses.tied) = &ref;
    }
  }
  return uses;
}

}  // namespace takt::train
