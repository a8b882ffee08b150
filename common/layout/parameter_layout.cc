// SPDX-License-Identifier: Apache-2.0
#include "common/layout/parameter_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "common/layout/regions.h"
#include "common/model/split_layers.h"
#include "common/program/program.h"

namespace takt::layout {
namespace {

using model::Parameter;

constexpr std::int64_t kFloatBytes = 4, kBf16Bytes = 2;

// The parameters that a section is of.
enum class Which : std::uint8_t { kAll, kNotByWord, kByWord };

class ParameterLayout {
 public:
  // words: the rows of each table by words that lie here; without any, all rows do.
  ParameterLayout(const model::Model& model, Which which, const ParameterOptions& options,
                  const mesh::WordRun& words = {})
      : model_(model),
        which_(which),
        num_versions_(options.num_versions),
        foresees_(options.foresees),
        place_(options.place),
        words_(words),
        frees_(options.frees),
        leaves_(options.leaves) {}

  // name: a constant.
  Section Run(std::string_view name, std::span<const LayerId> layers) && {
    section_.name = name;
    if (place_.count > 1 && which_ != Which::kByWord) FindKeptPacked(layers);
    for (const LayerId layer : layers) AddLayer(layer);
    if (IsPacked() && !frees_) {
      for (const LayerId layer : layers) AddPacked(layer);
    }
    if (gathered_ > 0) {
      section_.AddAlone(MemoryKind::kWeights,
                        {.role = Role::kGatheredWeights, .bytes = kFloatBytes * gathered_});
    }
    return std::move(section_);
  }

  // Finds the parameters that these layers, which are all of the rank, read packed alone. FP8 has
  // scales that need the whole in f32.
  void FindKeptPacked(std::span<const LayerId> layers) {
    if (!IsPacked() || model_.precisions.fp8 != model::Fp8Recipe::kNone) return;
    std::set<const Parameter*> read;  // in f32
    for (const LayerId layer : layers) {
      for (const Parameter* const parameter : Uses(LayerOf(layer)))
        (LayerOf(layer).MultipliesBy(*parameter) ? kept_packed_ : read).insert(parameter);
    }
    std::erase_if(kept_packed_, [&](const Parameter* each) { return read.contains(each); });
  }

  // Returns the weights of these layers and their packed copies, one behind the other.
  std::vector<Tensor> Whole(StageId stage, std::span<const LayerId> layers) const {
    std::vector<Tensor> tensors;
    Regions region;
    const auto add = [&](Role role, LayerId layer, const Parameter* parameter, std::int64_t bytes) {
      tensors.push_back({.role = role,
                         .stage = stage,
                         .layer = layer,
                         .parameter = parameter,
                         .offset = region.Add(bytes),
                         .bytes = bytes});
    };
    for (const LayerId layer : layers) {
      for (const Parameter* const parameter : Uses(LayerOf(layer))) {
        if (!kept_packed_.contains(parameter))
          add(Role::kWeight, layer, parameter, kFloatBytes * ElementsOf(*parameter));
      }
    }
    for (const LayerId layer : layers) {
      for (const Parameter* const parameter : Uses(LayerOf(layer))) {
        if (!IsPacked()) continue;
        for (const auto& [role, bytes] : PackedBytes(LayerOf(layer), *parameter))
          add(role, layer, parameter, bytes);
      }
    }
    return tensors;
  }

 private:
  void AddLayer(LayerId layer) {
    Regions gradient;
    std::vector<Tensor> gradients = Gradients(layer, gradient), weights;
    if (gradients.empty()) return;
    for (const Tensor& tensor : gradients) {
      if (here_.insert(tensor.parameter).second) weights.push_back(tensor);
    }
    // Each of several buckets begins with a line of the cache.
    const std::int64_t leaf = leaves_ > 1 ? RoundUp(gradient.size(), kLineBytes) : gradient.size();
    const int bucket = section_.Allocate(MemoryKind::kGradients, leaves_ * leaf);
    AddTensors(Role::kGradient, bucket, gradients);
    for (int i = 1; i < leaves_; ++i) {
      section_.tensors.push_back({.role = Role::kLeafGradients,
                                  .layer = layer,
                                  .allocation = bucket,
                                  .offset = i * leaf,
                                  .bytes = gradient.size()});
    }
    AddWeights(weights, NumPlaces(layer));
    using enum Role;
    AddMoments(kFirstMoment, weights, [](const Parameter& p) { return p.moments >= 1; });
    AddMoments(kSecondMoment, weights, [](const Parameter& p) { return p.moments >= 2; });
    const auto fed_back = [](const Parameter& p) { return p.fed_back; };
    if (std::ranges::any_of(weights, [&](const Tensor& each) { return fed_back(*each.parameter); }))
      AddMoments(kLastUpdate, weights, fed_back);
  }

  // Returns the layer's gradients, each with the rank's shard of it.
  std::vector<Tensor> Gradients(LayerId layer, Regions& region) {
    std::vector<Tensor> gradients;
    std::vector<BucketTensor> bucket;
    for (const Parameter* const parameter : Uses(LayerOf(layer))) {
      const mesh::WordRun words = WordsOf(*parameter);
      const std::int64_t elements = ElementsOf(*parameter);
      Tensor& tensor = gradients.emplace_back(
          Tensor{.layer = layer,
                 .parameter = parameter,
                 .first_row = words.first,
                 .rows = words.words,
                 .bytes = kFloatBytes * parameter->split.gradients * elements});
      tensor.offset = region.Add(tensor.bytes);
      bucket.push_back({.run = {.first = tensor.offset / kFloatBytes, .count = elements},
                        .alone = parameter->by_word});
    }
    for (const ShardUnit& unit : CutBucket(bucket, place_.count)) {
      const FloatRun& mine = ShardAt(unit, place_);
      for (std::size_t i = 0; i < unit.tensors.size(); ++i)
        gradients[unit.first + i].shard = PartIn(mine, unit.tensors[i]);
      const auto kept_packed = [this](const Tensor& each) {
        return kept_packed_.contains(each.parameter);
      };
      const auto parameters = std::span(gradients).subspan(unit.first, unit.tensors.size());
      if (std::ranges::any_of(parameters, kept_packed))
        gathered_ = std::max(gathered_, unit.tensors.back().end() - unit.tensors.front().first);
    }
    return gradients;
  }

  // Returns whether the rank keeps its shard alone of the weight.
  bool KeepsShard(const Parameter& parameter) const {
    return frees_ || kept_packed_.contains(&parameter);
  }

  // Returns how many places the weights of a layer have. Of rows, those of the embedding alone are
  // foreseen.
  int NumPlaces(LayerId layer) const {
    const bool foresees = foresees_ && (which_ != Which::kByWord || layer == LayerId(0));
    return num_versions_ + (foresees ? 1 : 0);
  }

  // Adds the weights, or the rank's shards of them, also those that are empty.
  void AddWeights(std::span<const Tensor> weights, int num_places) {
    Regions whole, shard;
    std::vector<Tensor> wholes, shards;
    for (Tensor tensor : weights) {
      const bool keeps_shard = KeepsShard(*tensor.parameter);
      tensor.bytes =
          kFloatBytes * (keeps_shard ? tensor.shard.count : ElementsOf(*tensor.parameter));
      tensor.offset = (keeps_shard ? shard : whole).Add(tensor.bytes);
      (keeps_shard ? shards : wholes).push_back(tensor);
    }
    // Weights that lie elsewhere have an allocation without bytes.
    if (!wholes.empty() || shards.empty())
      AddVersions(Role::kWeight, wholes, whole.size(), num_places);
    if (!shards.empty()) AddVersions(Role::kWeightShard, shards, shard.size(), num_places);
  }

  // Adds all versions of these tensors, which have so many bytes together.
  void AddVersions(Role role, std::span<const Tensor> tensors, std::int64_t bytes, int num_places) {
    const int allocation = section_.Allocate(MemoryKind::kWeights, num_places * bytes);
    for (int place = 0; place < num_places; ++place)
      AddTensors(role, allocation, tensors, VersionAt(place), place * bytes);
  }

  // Adds what the optimizer keeps in this role of the rank's shards of the weights that have it.
  void AddMoments(Role role, std::span<const Tensor> weights, bool (*has)(const Parameter&)) {
    std::vector<Tensor> moments;
    Regions region;
    for (Tensor tensor : weights) {
      if (!has(*tensor.parameter) || tensor.shard.count == 0) continue;
      tensor.bytes = kFloatBytes * tensor.shard.count;
      tensor.offset = region.Add(tensor.bytes);
      moments.push_back(tensor);
    }
    // Weights that lie elsewhere have allocations without bytes.
    if (moments.empty() && !weights.empty()) return;
    AddTensors(role, section_.Allocate(MemoryKind::kOptimizer, region.size()), moments);
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

  // Adds the copies of the layer's parameters. Those that are joined have one allocation.
  void AddPacked(LayerId layer) {
    std::vector<Tensor> copies;
    for (const Parameter* const parameter : Uses(LayerOf(layer))) {
      const mesh::WordRun words = WordsOf(*parameter);
      for (const auto& [role, bytes] : PackedBytes(LayerOf(layer), *parameter)) {
        copies.push_back({.role = role,
                          .layer = layer,
                          .parameter = parameter,
                          .first_row = words.first,
                          .rows = words.words,
                          .bytes = bytes});
      }
      if (parameter->adjoins_next || copies.empty()) continue;
      AddCopies(copies, NumPlaces(layer));
      copies.clear();
    }
  }

  // Adds all versions of these tensors, which follow one another, in one allocation.
  void AddCopies(std::span<Tensor> copies, int num_places) {
    std::int64_t bytes = 0;
    for (Tensor& copy : copies) {
      copy.offset = bytes;
      bytes += copy.bytes;
    }
    const int allocation = section_.Allocate(MemoryKind::kWeights, num_places * bytes);
    for (int place = 0; place < num_places; ++place) {
      for (Tensor copy : copies) {
        copy.allocation = allocation;
        copy.version = VersionAt(place);
        copy.offset += place * bytes;
        section_.tensors.push_back(copy);
      }
    }
  }

  // Returns which version of the weights is at a place at first.
  int VersionAt(int place) const { return place == num_versions_ ? program::kForeseen : place; }

  bool IsPacked() const { return model_.precisions.products == model::Precision::kBf16; }

  using RoleBytes = std::pair<Role, std::int64_t>;
  // Returns the bytes of the copies in bf16 that a layer needs of its parameter: it as it is
  // stored, or both orders of a matrix, or none.
  std::vector<RoleBytes> PackedBytes(const model::Layer& layer, const Parameter& parameter) const {
    if (parameter.shape.size() == 1 && parameter.kept_rounded)
      return {{Role::kPackedWeight, RoundUp(kBf16Bytes * ElementsOf(parameter), kLineBytes)}};
    if (!layer.MultipliesBy(parameter)) return {};
    const std::int64_t columns = parameter.shape[1], pieces = parameter.split.count;
    if (parameter.kept_rounded) {
      const std::int64_t rounded = RoundedElements(ElementsOf(parameter) / columns, columns);
      return {{Role::kPackedWeight, kBf16Bytes * rounded}};
    }
    const std::int64_t rows = ElementsOf(parameter) / columns / pieces;
    return {{Role::kPackedWeight, kBf16Bytes * pieces * PackedElements(rows, columns)},
            {Role::kPackedTransposedWeight, kBf16Bytes * pieces * PackedElements(columns, rows)}};
  }

  const model::Layer& LayerOf(LayerId layer) const { return model_.layers[layer.value()]; }

  // Returns the layer's own parameters in the model's order, then the tied ones.
  std::vector<const Parameter*> Uses(const model::Layer& layer) const {
    std::vector<const Parameter*> uses;
    for (const Parameter& parameter : layer.parameters) {
      if (!parameter.away) uses.push_back(&parameter);
    }
    for (const std::string& name : layer.tied_parameters) uses.push_back(model_.Find(name));
    if (which_ != Which::kAll) {
      std::erase_if(uses, [this](const Parameter* parameter) {
        return parameter->by_word != (which_ == Which::kByWord);
      });
    }
    return uses;
  }

  // Returns the rows of a parameter that lie here. No words: all of them do.
  mesh::WordRun WordsOf(const Parameter& parameter) const {
    return parameter.by_word ? words_ : mesh::WordRun();
  }
  // Returns the elements of a parameter that lie here.
  std::int64_t ElementsOf(const Parameter& parameter) const {
    const std::int64_t words = WordsOf(parameter).words;
    return words > 0 ? words * parameter.shape[1] : parameter.elements();
  }

  const model::Model& model_;
  const Which which_;
  const int num_versions_;
  const bool foresees_;  // a place behind those of versions has foreseen weights
  const ShardPlace place_;
  const mesh::WordRun words_;
  const bool frees_;
  const int leaves_;
  std::set<const Parameter*> here_;         // the parameters whose weights have a place
  std::set<const Parameter*> kept_packed_;  // those that are never whole in f32 but to be packed
  std::int64_t gathered_ = 0;               // the most elements that are gathered to be packed
  Section section_;
};

// Returns the words of a rank where tensor parallelism splits layers. Elsewhere there is no run,
// and a rank that has a table has all of it.
mesh::WordRun SplitWords(const model::Model& model) {
  const auto [first, last] = model::BlocksOf(model.tensor, model.config.vocab);
  return mesh::WordsOf({first, last}, PpRank(1), model.config.vocab);
}

}  // namespace

Section LayOutParameters(const model::Model& model, const std::vector<LayerId>& layers,
                         const ParameterOptions& options) {
  const mesh::WordRun words = model.tensor.splits() ? SplitWords(model) : mesh::WordRun();
  const bool no_words = model.tensor.splits() && words.words == 0;
  const Which which = options.spread || no_words ? Which::kNotByWord : Which::kAll;
  return ParameterLayout(model, which, options, words).Run("parameters", layers);
}

WholeWeights LayOutWholeWeights(const model::Model& model,
                                const std::map<StageId, std::vector<LayerId>>& stages,
                                int num_places) {
  WholeWeights whole;
  ParameterLayout layout(model, Which::kAll, {});
  std::vector<LayerId> all;
  for (const auto& [stage, layers] : stages) all.insert(all.end(), layers.begin(), layers.end());
  layout.FindKeptPacked(all);
  std::int64_t most = 0;
  for (const auto& [stage, layers] : stages) {
    const std::vector<Tensor>& tensors =
        whole.stages.emplace(stage, layout.Whole(stage, layers)).first->second;
    if (tensors.empty()) continue;
    most = std::max(most, RoundUp(tensors.back().offset + tensors.back().bytes, kLineBytes));
  }
  for (int i = 0; i < num_places; ++i) whole.places.Allocate(MemoryKind::kWeights, most);
  return whole;
}

Section LayOutRows(const model::Model& model, const mesh::WordRun& words, const ShardPlace& place,
                   bool foresees) {
  if (words.words == 0) return {.name = "rows"};
  // Only schedules with a flush spread the vocabulary, so the weights have one version.
  const std::vector<LayerId> users = {LayerId(0),
                                      LayerId(static_cast<std::int32_t>(model.layers.size()) - 1)};
  return ParameterLayout(model, Which::kByWord, {.place = place, .foresees = foresees}, words)
      .Run("rows", users);
}

}  // namespace takt::layout
