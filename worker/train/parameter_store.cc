// SPDX-License-Identifier: Apache-2.0
#include "worker/train/parameter_store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/layout/packed_matrix.h"
#include "common/model/vocabulary.h"

namespace takt::train {
namespace {

int NormIndex(const model::Model& model, const model::Parameter* parameter) {
  int index = 0;
  for (const model::Parameter* const each : model.AllParameters()) {
    if (each == parameter) return index;
    index += model::NumNormEntries(*each);
  }
  TAKT_CHECK(false);
}

// Returns how products of the layer round to FP8. Those of the head do not.
backend::Fp8Scaling Fp8Of(const model::Model& model, const model::Layer& layer) {
  if (layer.block < 0) return backend::Fp8Scaling::kNone;
  switch (model.precisions.fp8) {
    case model::Fp8Recipe::kNone:
      return backend::Fp8Scaling::kNone;
    case model::Fp8Recipe::kTensor:
      return backend::Fp8Scaling::kTensor;
    case model::Fp8Recipe::kBlock:
      return backend::Fp8Scaling::kBlock;
  }
  return backend::Fp8Scaling::kNone;
}

// Returns the uses of one layer that have rows in the section, without memory.
std::vector<ParameterRef> Uses(const model::Model& model, const layout::Section& parameters,
                               LayerId id) {
  const model::Layer& layer = model.layers[id.value()];
  std::vector<ParameterRef> refs;
  const auto add = [&](const model::Parameter* parameter, int norm_index) {
    const auto it = std::ranges::find_if(parameters.tensors, [&](const layout::Tensor& tensor) {
      return tensor.layer == id && tensor.parameter == parameter;
    });
    if (it == parameters.tensors.end()) return;
    TAKT_CHECK(it->first_row % model::kVocabularyBlock == 0);
    if (parameter->split.holder > 0) norm_index = -1;
    if (norm_index >= 0) {
      norm_index += static_cast<int>(it->first_row / model::kVocabularyBlock);
      norm_index += parameter->split.first;
    }
    refs.push_back({.parameter = parameter,
                    .first_row = it->first_row,
                    .rows = it->rows,
                    .fp8 = Fp8Of(model, layer),
                    .norm_index = norm_index});
  };
  for (const model::Parameter& parameter : layer.parameters)
    add(&parameter, NormIndex(model, &parameter));
  for (const std::string& name : layer.tied_parameters) add(model.Find(name), -1);
  return refs;
}

}  // namespace

std::vector<model::VocabularyBlock> ParameterRef::Runs() const {
  const std::int64_t here = rows > 0 ? rows : parameter->shape[0];
  if (parameter->by_word) return model::VocabularyBlocks(here);
  std::vector<model::VocabularyBlock> pieces;
  const std::int64_t words = here / parameter->split.count;
  for (std::int64_t first = 0; first < here; first += words)
    pieces.push_back({.first = first, .words = words});
  return pieces;
}

ParameterRef::PackedOffsets ParameterRef::PackedBefore(std::int64_t first) const {
  PackedOffsets offsets;
  if (first == 0) return offsets;
  for (const model::VocabularyBlock& run : Runs()) {
    if (run.first >= first) break;
    offsets.packed += layout::PackedElements(run.words, columns());
    offsets.transposed += layout::PackedElements(columns(), run.words);
  }
  return offsets;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const model::Model& model, const layout::Section& parameters, backend::Backend& backend,
    const std::set<LayerId>& second_copies, const layout::Section& rows,
    const layout::WholeWeights& whole) {
  auto store = std::unique_ptr<ParameterStore>(new ParameterStore);
  store->model_ = &model;
  store->backend_ = &backend;
  for (const model::Layer& layer : model.layers) {
    if (!layer.tied_parameters.empty()) store->tied_name_ = layer.tied_parameters.front();
  }
  ASSIGN_OR_RETURN(store->memory_, SectionMemory::Create(parameters, backend));
  ASSIGN_OR_RETURN(store->rows_memory_, SectionMemory::Create(rows, backend));
  store->layers_.reserve(2 * model.layers.size());  // uses refer to the elements
  store->AddLayers(model, parameters, second_copies, /*of_rows=*/false);
  store->num_stage_layers_ = store->layers_.size();
  store->AddLayers(model, rows, {}, /*of_rows=*/true);
  store->ResolveAll(parameters, store->memory_);
  store->ResolveAll(rows, store->rows_memory_);
  const auto parameter_of = [](const Use& use) { return use.ref->parameter; };
  for (Use& use : store->uses_) {
    if (!use.weight.empty()) continue;
    // An earlier layer owns the weight.
    const Use& owner = *std::ranges::find(store->uses_, parameter_of(use), parameter_of);
    use.weight = owner.weight;
    use.kept = owner.kept;
    use.ref->freed = owner.ref->freed;
  }
  RETURN_IF_ERROR(store->AddWhole(whole));
  store->FindRounded();
  store->ShowVersion(0);
  return store;
}

void ParameterStore::AddLayers(const model::Model& model, const layout::Section& section,
                               const std::set<LayerId>& second_copies, bool of_rows) {
  std::set<LayerId> layers;
  for (const layout::Tensor& tensor : section.tensors) {
    if (tensor.role == layout::Role::kGatheredWeights) continue;
    layers.insert(tensor.layer);
    num_versions_ = std::max(num_versions_, tensor.version + 1);
  }
  for (const LayerId layer : layers) {
    LayerParameters& added =
        layers_.emplace_back(LayerParameters{.layer = layer,
                                             .primary = !second_copies.contains(layer),
                                             .refs = Uses(model, section, layer)});
    for (ParameterRef& ref : added.refs)
      uses_.push_back({.layer = &added, .ref = &ref, .of_rows = of_rows});
  }
}

void ParameterStore::ResolveAll(const layout::Section& section, const SectionMemory& memory) {
  for (const layout::Tensor& tensor : section.tensors) {
    if (tensor.role == layout::Role::kLeafGradients) {
      ResolveLeaf(tensor);
      continue;
    }
    if (tensor.role == layout::Role::kGatheredWeights) {
      gathered_ = memory.FloatsAt(tensor);
      continue;
    }
    Resolve(tensor, section.allocations[static_cast<std::size_t>(tensor.allocation)],
            memory.At(tensor));
  }
}

void ParameterStore::ResolveLeaf(const layout::Tensor& tensor) {
  LayerParameters& layer = *std::ranges::find(layers_, tensor.layer, &LayerParameters::layer);
  layer.gradients = layer.gradients.first(static_cast<std::size_t>(tensor.bytes) / sizeof(float));
  if (layer.leaves.count++ == 1)
    layer.leaves.stride = static_cast<std::size_t>(tensor.offset) / sizeof(float);
}

void ParameterStore::Resolve(const layout::Tensor& tensor, const layout::Allocation& allocation,
                             std::byte* place) {
  const auto it = std::ranges::find_if(uses_, [&](const Use& use) {
    return use.layer->layer == tensor.layer && use.ref->parameter == tensor.parameter;
  });
  Use& use = *it;
  auto* const floats = reinterpret_cast<float*>(place);
  auto* const halves = reinterpret_cast<backend::Bf16*>(place);
  switch (tensor.role) {
    case layout::Role::kGradient:
      use.ref->gradient = floats;
      use.ref->shard = tensor.shard;
      if (tensor.offset == 0)
        use.layer->gradients = {floats, static_cast<std::size_t>(allocation.bytes) / sizeof(float)};
      break;
    case layout::Role::kWeight:
      use.weight.push_back(floats);
      use.ref->updated = true;
      break;
    case layout::Role::kWeightShard:
      use.weight.push_back(nullptr);
      use.kept.push_back(floats);
      use.ref->updated = use.ref->freed = true;
      break;
    case layout::Role::kFirstMoment:
      use.ref->m = floats;
      break;
    case layout::Role::kSecondMoment:
      use.ref->v = floats;
      break;
    case layout::Role::kLastUpdate:
      use.ref->last_update = floats;
      break;
    case layout::Role::kPackedWeight:
      use.packed.push_back(halves);
      break;
    case layout::Role::kPackedTransposedWeight:
      use.packed_transposed.push_back(halves);
      break;
    default:
      TAKT_CHECK(false && "a section of parameters has a tensor of another role");
  }
}

absl::Status ParameterStore::AddWhole(const layout::WholeWeights& whole) {
  ASSIGN_OR_RETURN(places_, SectionMemory::Create(whole.places, *backend_));
  for (int place = static_cast<int>(whole.places.allocations.size()); place-- > 0;)
    free_places_.push_back(place);
  for (const auto& [stage, tensors] : whole.stages) {
    Whole& added = whole_[stage];
    for (const layout::Tensor& tensor : tensors) {
      const auto use = std::ranges::find_if(uses_, [&](const Use& each) {
        return each.layer->layer == tensor.layer && each.ref->parameter == tensor.parameter;
      });
      added.tensors.emplace_back(&*use, tensor);
    }
  }
  return absl::OkStatus();
}

void ParameterStore::FindRounded() {
  for (Use& owner : uses_) {
    if (!owner.ref->updated || !owner.ref->parameter->kept_rounded) continue;
    for (Use& use : uses_) {
      if (use.ref->parameter != owner.ref->parameter || use.packed.empty()) continue;
      owner.rounds = &use;
      use.rounded_by = &owner;
    }
  }
}

void ParameterStore::Place(StageId stage) {
  Whole& whole = whole_.at(stage);
  TAKT_CHECK(whole.place < 0 && !free_places_.empty());
  whole.place = free_places_.back();
  free_places_.pop_back();
  whole.packed = false;
  for (const auto& [use, tensor] : whole.tensors) {
    std::byte* const at = places_.Begin(whole.place) + tensor.offset;
    auto* const halves = reinterpret_cast<backend::Bf16*>(at);
    if (tensor.role == layout::Role::kWeight)
      use->ref->weight = use->weight[0] = reinterpret_cast<float*>(at);
    if (tensor.role == layout::Role::kPackedWeight) {
      use->packed = {halves};
      use->ref->packed = halves;
    }
    if (tensor.role == layout::Role::kPackedTransposedWeight) {
      use->packed_transposed = {halves};
      use->ref->packed_transposed = halves;
    }
  }
}

void ParameterStore::Free(StageId stage) {
  Whole& whole = whole_.at(stage);
  TAKT_CHECK(whole.place >= 0);
  free_places_.push_back(whole.place);
  whole.place = -1;
  for (const auto& [use, tensor] : whole.tensors) {
    use->ref->weight = use->weight[0] = nullptr;
    use->packed.clear();
    use->packed_transposed.clear();
    use->ref->packed = use->ref->packed_transposed = nullptr;
  }
}

absl::Status ParameterStore::PackWhole(backend::Backend& backend, StageId stage) {
  const auto found = whole_.find(stage);
  if (found == whole_.end() || std::exchange(found->second.packed, true)) return absl::OkStatus();
  for (const auto& [use, tensor] : found->second.tensors) {
    if (tensor.role == layout::Role::kPackedWeight)
      RETURN_IF_ERROR(PackUse(backend, *use, /*place=*/0));
  }
  return absl::OkStatus();
}

void ParameterStore::SelectVersion(int version) {
  TAKT_CHECK(version >= program::kForeseen && version < num_versions_);
  if (version != selected_) ShowVersion(version);
}

void ParameterStore::BeginUpdate() {
  newest_ = (newest_ + num_versions_ - 1) % num_versions_;
  ShowVersion(0);
  const std::size_t before = PlaceOf(num_versions_ > 1 ? 1 : 0);
  for (Use& use : uses_) use.ref->previous = KeptAt(use, before);
}

void ParameterStore::BeginForesight() {
  ShowVersion(program::kForeseen);
  for (Use& use : uses_) {
    if (!use.of_rows) use.ref->previous = KeptAt(use, PlaceOf(0));
  }
}

std::optional<ParameterRef> ParameterStore::ForeseenRows() const {
  const auto use = std::ranges::find_if(
      uses_, [](const Use& each) { return each.of_rows && each.ref->updated; });
  const std::size_t place = PlaceOf(program::kForeseen);
  if (use == uses_.end() || use->weight.size() <= place) return std::nullopt;
  ParameterRef foreseen = *use->ref;
  foreseen.weight = use->weight[place];
  if (!use->kept.empty()) foreseen.kept = use->kept[place];
  foreseen.previous = KeptAt(*use, PlaceOf(0));
  foreseen.packed = foreseen.packed_transposed = foreseen.rounded = nullptr;
  return foreseen;
}

absl::Status ParameterStore::Pack(backend::Backend& backend, const LayerParameters& layer,
                                  int version) {
  for (const Use& use : uses_) {
    if (use.layer == &layer) RETURN_IF_ERROR(PackUse(backend, use, PlaceOf(version)));
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::Pack(backend::Backend& backend, int version) {
  for (const Use& use : uses_) {
    if (!use.of_rows || version != program::kForeseen)
      RETURN_IF_ERROR(PackUse(backend, use, PlaceOf(version)));
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::PackAfterUpdate(backend::Backend& backend, int version) {
  for (const Use& use : uses_) {
    if (use.of_rows && version == program::kForeseen) continue;
    if (use.rounded_by != nullptr && use.rounded_by->ref->is_rounded_by_update()) continue;
    RETURN_IF_ERROR(PackUse(backend, use, PlaceOf(version)));
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::PackUse(backend::Backend& backend, const Use& use, std::size_t place) {
  if (use.packed.empty() || use.weight[place] == nullptr) return absl::OkStatus();
  ParameterRef at_place = *use.ref;
  at_place.packed = use.packed[place];
  if (!use.packed_transposed.empty()) at_place.packed_transposed = use.packed_transposed[place];
  return PackFrom(backend, use.weight[place], at_place);
}

absl::Status ParameterStore::PackFrom(backend::MemoryBackend& memory, const float* whole,
                                      const ParameterRef& ref) {
  if (ref.parameter->kept_rounded) {
    // The zeros behind it are those of memory that nobody has written.
    return memory.Run(backend::Copy{.input = whole, .output = ref.packed, .count = ref.elements()});
  }
  const std::int64_t columns = ref.columns();
  for (const auto& [first, rows] : ref.Runs()) {
    const float* const b = whole + first * columns;
    const ParameterRef::PackedOffsets offsets = ref.PackedBefore(first);
    RETURN_IF_ERROR(memory.Run(backend::PackBf16{
        .b = b, .fp8 = ref.fp8, .packed = ref.packed + offsets.packed, .k = rows, .n = columns}));
    RETURN_IF_ERROR(
        memory.Run(backend::PackBf16{.b = b,
                                     .transposed = true,
                                     .fp8 = ref.fp8,
                                     .packed = ref.packed_transposed + offsets.transposed,
                                     .k = columns,
                                     .n = rows}));
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::SpreadNewest(backend::Backend& backend) {
  ShowVersion(0);
  for (const Use& use : uses_) {
    if (!use.ref->updated) continue;
    for (int version = 1; version < num_versions_; ++version) {
      RETURN_IF_ERROR(backend.Run(backend::Copy{.input = use.ref->weight,
                                                .output = use.weight[PlaceOf(version)],
                                                .count = use.ref->elements()}));
    }
  }
  for (int version = 1; version < num_versions_; ++version) {
    RETURN_IF_ERROR(Pack(backend, version));
  }
  return absl::OkStatus();
}

void ParameterStore::ShowVersion(int version) {
  selected_ = version;
  for (Use& use : uses_) {
    const std::size_t place = PlaceShown(use, version);
    TAKT_CHECK(place < use.weight.size());
    use.ref->weight = use.weight[place];
    if (!use.kept.empty()) use.ref->kept = use.kept[place];
    if (use.rounds != nullptr) use.ref->rounded = use.rounds->packed[place];
    if (use.packed.empty()) continue;
    use.ref->packed = use.packed[place];
    if (use.packed_transposed.empty()) continue;
    use.ref->packed_transposed = use.packed_transposed[place];
  }
}

const LayerParameters& ParameterStore::Layer(LayerId layer) const {
  const std::span<const LayerParameters> stages = stage_layers();
  const auto it = std::ranges::find(stages, layer, &LayerParameters::layer);
  if (it != stages.end()) return *it;
  const auto& owned = model_->layers[static_cast<std::size_t>(layer.value())].parameters;
  TAKT_CHECK(std::ranges::all_of(owned, &model::Parameter::by_word));
  return nothing_;
}

const LayerParameters* ParameterStore::Rows(LayerId layer) const {
  const auto rows = layers().subspan(num_stage_layers_);
  const auto it = std::ranges::find(rows, layer, &LayerParameters::layer);
  return it == rows.end() ? nullptr : &*it;
}

bool ParameterStore::IsOfRows(const ParameterRef& ref) const {
  const auto is_ref = [&ref](const ParameterRef& each) { return &each == &ref; };
  return std::ranges::any_of(layers().subspan(num_stage_layers_), [&](const LayerParameters& rows) {
    return std::ranges::any_of(rows.refs, is_ref);
  });
}

std::vector<const ParameterRef*> ParameterStore::trained() const {
  std::vector<const ParameterRef*> trained;
  for (const Use& use : uses_) {
    if (use.ref->updated) trained.push_back(use.ref);
  }
  return trained;
}

ParameterStore::TiedUses ParameterStore::tied_uses() const {
  TiedUses uses;
  for (const Use& use : uses_) {
    if (use.ref->parameter->name != tied_name_) continue;
    (use.ref->norm_index >= 0 ? uses.own : uses.tied) = use.ref;
  }
  return uses;
}

}  // namespace takt::train
