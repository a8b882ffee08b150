// SPDX-License-Identifier: Apache-2.0
#include "worker/train/parameter_store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "worker/train/regions.h"

namespace takt::train {
namespace {

const model::Parameter* FindParameter(const model::Model& model, std::string_view name) {
  for (const model::Layer& layer : model.layers) {
    for (const model::Parameter& parameter : layer.parameters) {
      if (parameter.name == name) return &parameter;
    }
  }
  TAKT_CHECK(false && "a tied parameter belongs to no layer");
  return nullptr;
}

int NormIndex(const model::Model& model, const model::Parameter* parameter) {
  const std::vector<const model::Parameter*> all = model.AllParameters();
  const auto it = std::find(all.begin(), all.end(), parameter);
  TAKT_CHECK(it != all.end());
  return static_cast<int>(it - all.begin());
}

// The uses of one layer, without memory.
std::vector<ParameterRef> Uses(const model::Model& model, LayerId id) {
  const model::Layer& layer = model.layers[id.value()];
  std::vector<ParameterRef> refs;
  for (const model::Parameter& parameter : layer.parameters) {
    refs.push_back({.parameter = &parameter, .norm_index = NormIndex(model, &parameter)});
  }
  for (const std::string& name : layer.tied_parameters)
    refs.push_back({.parameter = FindParameter(model, name)});
  return refs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const model::Model& model, std::vector<LayerId> layers, backend::Backend& backend,
    const ParameterStoreOptions& options) {
  TAKT_CHECK(options.num_versions >= 1);
  std::sort(layers.begin(), layers.end());
  auto store = std::unique_ptr<ParameterStore>(new ParameterStore);
  store->backend_ = &backend;
  store->num_versions_ = options.num_versions;
  for (const model::Layer& layer : model.layers) {
    if (!layer.tied_parameters.empty()) store->tied_name_ = layer.tied_parameters.front();
  }
  store->layers_.reserve(layers.size());  // layers keep references to the elements
  for (const LayerId id : layers) {
    LayerParameters& layer = store->layers_.emplace_back();
    layer.layer = id;
    layer.primary = !options.second_copies.contains(id);
    layer.refs = Uses(model, id);

    Regions gradients;
    Regions state;  // of weights, m and v alike; a weight shared with an earlier layer takes no
                    // place here
    struct Place {
      std::int64_t gradient = 0, state = -1;
    };
    std::vector<Place> places;
    for (const ParameterRef& ref : layer.refs) {
      const bool shared = ref.norm_index < 0 && store->Find(ref.parameter->name) != nullptr;
      Place place{.gradient = gradients.Add(ref.parameter->elements())};
      if (!shared) place.state = state.Add(ref.parameter->elements());
      places.push_back(place);
    }

    float* ranges[4] = {};
    const std::int64_t sizes[4] = {gradients.size(), options.num_versions * state.size(),
                                   state.size(), state.size()};
    constexpr MemoryKind kKinds[4] = {MemoryKind::kGradients, MemoryKind::kWeights,
                                      MemoryKind::kOptimizer, MemoryKind::kOptimizer};
    for (int i = 0; i < 4; ++i) {
      ASSIGN_OR_RETURN(backend::Buffer buffer,
                       backend.Allocate(sizes[i] * sizeof(float), kKinds[i]));
      ranges[i] = buffer.floats();
      store->buffers_.push_back(std::move(buffer));
    }
    layer.gradients = {ranges[0], static_cast<std::size_t>(gradients.size())};
    std::vector<Versions>& versions = store->versions_.emplace_back();
    for (std::size_t i = 0; i < layer.refs.size(); ++i) {
      ParameterRef& ref = layer.refs[i];
      ref.gradient = ranges[0] + places[i].gradient;
      if (places[i].state < 0) {
        versions.push_back(store->VersionsOf(ref.parameter->name));
      } else {
        versions.push_back({.first = ranges[1] + places[i].state, .stride = state.size()});
        ref.m = ranges[2] + places[i].state;
        ref.v = ranges[3] + places[i].state;
      }
    }
  }
  if (model.precisions.products == model::Precision::kBf16) {
    RETURN_IF_ERROR(store->AllocatePacked(model, backend));
  }
  store->ShowVersion(0);
  return store;
}

absl::Status ParameterStore::AllocatePacked(const model::Model& model, backend::Backend& backend) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const model::Layer& layer = model.layers[layers_[i].layer.value()];
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      const model::Parameter& parameter = *layers_[i].refs[j].parameter;
      if (!layer.MultipliesBy(parameter)) continue;
      const std::int64_t rows = parameter.shape[0], columns = parameter.shape[1];
      Versions& versions = versions_[i][j];
      versions.packed_elements = backend::PackedBf16Elements(rows, columns);
      versions.packed_transposed_elements = backend::PackedBf16Elements(columns, rows);
      const std::int64_t elements =
          num_versions_ * (versions.packed_elements + versions.packed_transposed_elements);
      ASSIGN_OR_RETURN(backend::Buffer buffer,
                       backend.Allocate(elements * sizeof(backend::Bf16), MemoryKind::kWeights));
      versions.packed = reinterpret_cast<backend::Bf16*>(buffer.data());
      buffers_.push_back(std::move(buffer));
    }
  }
  return absl::OkStatus();
}

void ParameterStore::SelectVersion(int version) {
  TAKT_CHECK(version >= 0 && version < num_versions_);
  if (version != selected_) ShowVersion(version);
}

void ParameterStore::BeginUpdate() {
  newest_ = (newest_ + num_versions_ - 1) % num_versions_;
  ShowVersion(0);
  const int before = num_versions_ > 1 ? 1 : 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      layers_[i].refs[j].previous = WeightOf(i, j, before);
    }
  }
}

absl::Status ParameterStore::Pack(backend::Backend& backend) { return PackVersion(backend, 0); }

absl::Status ParameterStore::PackVersion(backend::Backend& backend, int version) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      const Versions& versions = versions_[i][j];
      if (versions.packed == nullptr) continue;
      const std::vector<std::int64_t>& shape = layers_[i].refs[j].parameter->shape;
      backend::PackBf16 op{.b = WeightOf(i, j, version),
                           .packed = PackedOf(versions, version),
                           .k = shape[0],
                           .n = shape[1]};
      RETURN_IF_ERROR(backend.Run(op));
      op.transposed = true;
      op.packed += versions.packed_elements;
      std::swap(op.k, op.n);
      RETURN_IF_ERROR(backend.Run(op));
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
                                                  .output = WeightOf(i, j, version),
                                                  .count = ref.parameter->elements()}));
      }
    }
  }
  for (int version = 1; version < num_versions_; ++version) {
    RETURN_IF_ERROR(PackVersion(backend, version));
  }
  return absl::OkStatus();
}

float* ParameterStore::WeightOf(std::size_t layer, std::size_t ref, int version) const {
  const Versions& versions = versions_[layer][ref];
  return versions.first + (newest_ + version) % num_versions_ * versions.stride;
}

backend::Bf16* ParameterStore::PackedOf(const Versions& versions, int version) const {
  return versions.packed + (newest_ + version) % num_versions_ *
                               (versions.packed_elements + versions.packed_transposed_elements);
}

void ParameterStore::ShowVersion(int version) {
  selected_ = version;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].refs.size(); ++j) {
      ParameterRef& ref = layers_[i].refs[j];
      ref.weight = WeightOf(i, j, version);
      const Versions& versions = versions_[i][j];
      if (versions.packed == nullptr) continue;
      ref.packed = PackedOf(versions, version);
      ref.packed_transposed = ref.packed + versions.packed_elements;
    }
  }
}

ParameterStore::Versions ParameterStore::VersionsOf(std::string_view name) const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    for (std::size_t j = 0; j < versions_[i].size(); ++j) {
      const ParameterRef& ref = layers_[i].refs[j];
      if (ref.m != nullptr && ref.parameter->name == name) return versions_[i][j];
    }
  }
  TAKT_CHECK(false && "a shared weight has no owner");
  return {};
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
