// SPDX-License-Identifier: Apache-2.0
// The parameters of one rank: weights, f32 gradients and the optimizer's moments, at the places
// that common/layout gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/shard.h"
#include "common/layout/tensor.h"
#include "common/model/model.h"
#include "common/model/vocabulary.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/train/section_memory.h"
#include "worker/transport/collective.h"

namespace takt::train {

// One parameter as one layer uses it. Pointers are to the backend's memory.
struct ParameterRef {
  const model::Parameter* parameter = nullptr;
  // The rows of the parameter that this rank has, to which all pointers below are. They are whole
  // blocks of words (common/model/vocabulary.h) where they are not all. rows 0: all.
  std::int64_t first_row = 0, rows = 0;
  // It is of the selected version. Null while it is not whole: where the rank frees weights, and
  // of one that it only keeps packed, for good.
  float* weight = nullptr;
  // The version before the newest, of `kept` if the weight is `freed`. It is the same place if
  // there is only one version.
  const float* previous = nullptr;
  // The selected version's matrix as it is stored, and its transpose, as PackBf16 leaves them. A
  // table by words is packed block by block. Null unless products are in bf16 and the layer
  // multiplies by the parameter. Of what is kept rounded (Parameter::kept_rounded), `packed` has
  // the parameter in the order in which it is stored, and `packed_transposed` is null. The rows of
  // zeros after it (layout::RoundedElements) are those of new memory and are never written.
  backend::Bf16* packed = nullptr;
  backend::Bf16* packed_transposed = nullptr;
  // The `packed` that an update of this weight writes: this use's, or that of another use on the
  // rank that is tied to it. Null: there is none that is kept rounded.
  backend::Bf16* rounded = nullptr;
  // Says how the layer's products round to FP8, if they do.
  backend::Fp8Scaling fp8 = backend::Fp8Scaling::kNone;
  // This use's own; where leaves have gradients apart (model::Split), those follow one another.
  float* gradient = nullptr;
  // The elements, counted from the first one here, of which this rank has the optimizer's state:
  // all, unless ranks share it (layer_shards.h).
  layout::FloatRun shard;
  // True: the rank keeps in f32 only `kept`, those of the shard, because it frees weights
  // (ParameterStore::frees) or reads this one packed (layout::LayOutParameters).
  bool freed = false;
  float* kept = nullptr;
  // These are the optimizer's moments of the shard. They are null if it does not have them, if the
  // shard is empty, and if `updated` is false.
  float* m = nullptr;
  float* v = nullptr;
  // The last update of the shard, if errors are fed back (backend::FeedBackError).
  float* last_update = nullptr;
  // False: another layer of this rank owns the weight and updates it.
  bool updated = false;
  // The first of its entries in the norm exchange (model::NumNormEntries); -1: a copy, which
  // another rank or layer counts.
  int norm_index = -1;

  // Counts elements of the parameter: in one row, before the rows of this rank, and in these.
  std::int64_t columns() const { return parameter->elements() / parameter->shape[0]; }
  std::int64_t first_element() const { return first_row * columns(); }
  std::int64_t elements() const { return rows > 0 ? rows * columns() : parameter->elements(); }
  // Returns the elements whose weights are here at all times, and the first of these weights.
  layout::FloatRun kept_run() const { return freed ? shard : layout::FloatRun{0, elements()}; }
  float* kept_weights() const { return freed ? kept : weight; }
  // Returns the weights of the shard, and those of the version before the newest.
  float* shard_weights() const { return freed ? kept : weight + shard.first; }
  const float* shard_previous() const { return freed ? previous : previous + shard.first; }
  // Returns whether the optimizer's op, which then changes all of the weight, leaves it in
  // `rounded`.
  bool is_rounded_by_update() const {
    return rounded != nullptr && !freed && shard.count == elements() && !parameter->by_muon &&
           !parameter->fed_back;
  }
  // Returns m, v or last_update as far as there is one.
  std::span<float> moment(float* which) const {
    return {which, which == nullptr ? 0 : static_cast<std::size_t>(shard.count)};
  }
  // Returns the runs of the rank's rows on which one op works at a time, counted from its first
  // row: blocks of words, or pieces (model::Split), or all rows.
  std::vector<model::VocabularyBlock> Runs() const;
  // Returns where the run that begins at row `first` is packed. Each run is packed apart.
  struct PackedOffsets {
    std::int64_t packed = 0, transposed = 0;
  };
  PackedOffsets PackedBefore(std::int64_t first) const;
};

struct LayerParameters {
  LayerId layer;
  // False: this is the second copy of a bidirectional pipeline. Where a layer counts once (norm,
  // checkpoint), the rank with the primary copy counts it.
  bool primary = true;
  // The layer's own in the model's order, then the tied ones: those of which rows are here.
  std::vector<ParameterRef> refs;
  std::span<float> gradients;  // the bucket: all of refs' gradients, contiguous
  // Where the replica has several leaves, each has a bucket, of which `gradients` is the last.
  transport::Collective::Terms leaves;
};

// If the layer that owns a tied parameter is on this rank, both uses share one weight and one
// optimizer state. Otherwise this rank has a copy, and REDUCE_TIED keeps it equal: it adds the
// gradients of both uses before the optimizer runs. Each use has a gradient of its own in its
// layer's bucket. So the two are first summed over data-parallel ranks separately and then added,
// and the order of additions is the same for every partition.
//
// Programs without a flush keep several versions of the weights, numbered by age: 0 is the newest.
// `ParameterRef::weight` shows the selected version, which is version 0 at first and after each
// BeginUpdate.
//
// Where steps overlap, there is one version more: the weights that SPECULATE foresees
// (program::kForeseen), which never become another version. Of a rank's rows of a spread vocabulary
// only those of the embedding are foreseen. Another lane makes and reads them (ForeseenRows), so
// the uses of rows always show the newest weights.
//
// Not synchronised: the slots of the program order its users.
class ParameterStore {
 public:
  // parameters: as layout::LayOutParameters makes it of `model`. second_copies: the layers here
  // that are not primary. rows: as layout::LayOutRows makes it, where the vocabulary is spread.
  // whole: as layout::LayOutWholeWeights makes it, where the rank frees weights.
  // model, backend: borrowed for the store's life.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(
      const model::Model& model, const layout::Section& parameters, backend::Backend& backend,
      const std::set<LayerId>& second_copies = {}, const layout::Section& rows = {},
      const layout::WholeWeights& whole = {});

  // Returns whether the rank frees weights in a step, of which it keeps shards.
  bool frees() const { return !whole_.empty(); }
  // Gives the weights of a stage room where they can be whole: its memory holds what it held
  // before.  Reduce lane, as Free.  Precondition: a place is free.
  void Place(StageId stage);
  // Takes that room back.
  void Free(StageId stage);
  // Makes the `packed` matrices of a stage, unless that was done since Place. Compute lane.
  absl::Status PackWhole(backend::Backend& backend, StageId stage);

  // Makes the weights of this age the ones that layers see. It only changes pointers.
  void SelectVersion(int version);
  // Returns a number that is the same whenever the selected weights are in the same memory.
  int selected_place() const { return static_cast<int>(PlaceOf(selected_)); }

  // Makes all versions older by one. The oldest gives its place to the new one. Afterwards every
  // `weight` shows where the new weights go, and every `previous` shows the weights that were the
  // newest.
  void BeginUpdate();

  // Selects the foreseen weights, but for those of rows. Afterwards every `weight` shows where they
  // go, and every `previous` shows the newest weights.  Precondition: the store has room for them.
  void BeginForesight();
  // Returns the foreseen rows of the embedding, as BeginForesight would show them. It has no
  // `rounded` and no `packed` matrices. nullopt: no rows are here, or none are foreseen.
  std::optional<ParameterRef> ForeseenRows() const;

  // Copies the newest version to all others, and selects it. Foreseen weights stay.
  absl::Status SpreadNewest(backend::Backend& backend);

  // Makes the `packed` matrices of the newest weights, or of the foreseen ones. Call it after every
  // change of these.
  absl::Status Pack(backend::Backend& backend, int version = 0);
  // Does so where the optimizer has just made them, but for what it has rounded itself.
  absl::Status PackAfterUpdate(backend::Backend& backend, int version);
  // Makes those of one layer of a rank's stages, or of its rows. Both leave out weights that are
  // not whole.
  absl::Status Pack(backend::Backend& backend, const LayerParameters& layer, int version = 0);
  // Makes those of one weight, of the selected version. whole: the weight in f32.
  static absl::Status PackFrom(backend::MemoryBackend& memory, const float* whole,
                               const ParameterRef& ref);
  // Returns where weights are whole in f32 while they are gathered to be packed, which has room for
  // those of any layer. Reduce lane. Null: the rank keeps all weights whole, or none.
  float* gathered() const { return gathered_; }

  // The backend that owns the memory. Ask it to read or write that memory from the host.
  backend::Backend& backend() const { return *backend_; }

  // Returns what a layer of the rank's stages has here, which is nothing if all its parameters are
  // tables that are spread.
  const LayerParameters& Layer(LayerId layer) const;
  // Returns the rank's rows as the layer uses them: the embedding, or the head. Null: it has none.
  const LayerParameters* Rows(LayerId layer) const;
  // Returns whether the use is one of the rank's rows.
  bool IsOfRows(const ParameterRef& ref) const;
  // Returns those of stages in the order of layers, then those of rows.
  std::span<const LayerParameters> layers() const { return layers_; }
  std::span<const LayerParameters> stage_layers() const {
    return layers().first(num_stage_layers_);
  }
  // Returns the uses that update their weight: each weight of this rank once, layer by layer.
  std::vector<const ParameterRef*> trained() const;

  // The two uses of the tied parameter: `own` in the embedding's bucket, `tied` in the head's. A
  // use on another rank is null.
  struct TiedUses {
    const ParameterRef* own = nullptr;
    const ParameterRef* tied = nullptr;
  };
  TiedUses tied_uses() const;

 private:
  // One use of a weight. The lists have the places of all versions, that of foreseen weights last;
  // those of shards and packed matrices are empty if the use has none.
  struct Use {
    LayerParameters* layer = nullptr;
    ParameterRef* ref = nullptr;
    std::vector<float*> weight, kept;
    std::vector<backend::Bf16*> packed, packed_transposed;
    // The use whose `packed` an update of this one's weight writes, and the reverse of that.
    const Use *rounds = nullptr, *rounded_by = nullptr;
    bool of_rows = false;
  };
  // The weights of one stage where the rank frees weights.
  struct Whole {
    std::vector<std::pair<Use*, layout::Tensor>> tensors;
    int place = -1;       // the reduce lane's
    bool packed = false;  // the slots of the weights order the lanes that use it
  };
  ParameterStore() = default;
  // Adds the layers that have tensors in the section. Room for them was reserved.
  void AddLayers(const model::Model& model, const layout::Section& section,
                 const std::set<LayerId>& second_copies, bool of_rows);
  absl::Status AddWhole(const layout::WholeWeights& whole);
  // Finds for each weight that is kept rounded the use that has it so.
  void FindRounded();
  // Tells the uses where their tensors are.
  void ResolveAll(const layout::Section& section, const SectionMemory& memory);
  // Tells the layer of a kLeafGradients where it is.
  void ResolveLeaf(const layout::Tensor& tensor);
  // Tells the use that `tensor` belongs to that it is at `place`, in this allocation.
  void Resolve(const layout::Tensor& tensor, const layout::Allocation& allocation,
               std::byte* place);
  void ShowVersion(int version);
  // Returns where a use shows a version.
  std::size_t PlaceShown(const Use& use, int version) const {
    return PlaceOf(use.of_rows && version == program::kForeseen ? 0 : version);
  }
  std::size_t PlaceOf(int version) const {
    if (version == program::kForeseen) return static_cast<std::size_t>(num_versions_);
    return static_cast<std::size_t>((newest_ + version) % num_versions_);
  }
  static absl::Status PackUse(backend::Backend& backend, const Use& use, std::size_t place);
  // Returns where the weights of this place are that the rank keeps.
  static const float* KeptAt(const Use& use, std::size_t place) {
    return use.kept.empty() ? use.weight[place] : use.kept[place];
  }

  const model::Model* model_ = nullptr;
  backend::Backend* backend_ = nullptr;
  std::vector<LayerParameters> layers_;
  std::size_t num_stage_layers_ = 0;  // the others are of rows
  const LayerParameters nothing_{};
  std::vector<Use> uses_;  // of all layers
  int num_versions_ = 1;   // without the foreseen one
  int newest_ = 0;         // the place of version 0; older ones follow it, modulo num_versions_
  int selected_ = 0;       // the selected version
  std::string tied_name_;  // empty: the model has no tied parameter
  float* gathered_ = nullptr;
  SectionMemory memory_, rows_memory_, places_;
  std::map<StageId, Whole> whole_;
  std::vector<int> free_places_;  // the reduce lane's
};

}  // namespace takt::train
