// SPDX-License-Identifier: Apache-2.0
// Trains one layer where the ranks that sum its gradients share the optimizer's state
// (docs/adr/0010).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/layout/shard.h"
#include "worker/backend/backend.h"
#include "worker/backend/stream_link.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::train {

// GatherWeights needs this where a rank keeps a shard of a weight in f32, and all of it packed. The
// pointers are borrowed.
struct Packing {
  backend::MemoryBackend* memory = nullptr;  // of the lane that gathers
  float* room = nullptr;                     // ParameterStore::gathered
  backend::StreamLink to_group, from_group;  // between the streams of `memory` and of the group
};

// Returns how the bucket of a layer is cut among so many ranks.
std::vector<layout::ShardUnit> ShardUnitsOf(const LayerParameters& layer, int num_ranks);

// Each rank of the group has the optimizer's state of its shard of the layer. A step sums the
// gradients, passes on the squares of their blocks, updates the shards and gathers the weights:
//   ReduceGradients, SumSquares, a sum of the blocks over the group, AddSquares, an update of
//   Parts(), GatherWeights.
// Afterwards norm and weights have the bits that they would have if every rank had computed all of
// them: a shard's gradients and the blocks are summed in the same order, updates work element by
// element, and the gather copies. Of a weight that a rank only keeps packed, its shard is gathered
// in f32 with those of the others, and packed at once.
//
// All ranks make the same calls in the same order. Not synchronised: the slots of the program order
// the calls.
class LayerShards {
 public:
  // layer, group, packing: borrowed for the object's life. packing: null if the rank packs no
  // weight from its shards. in_reversed_pairs: ranks 2i and 2i + 1 of the group have shards 2i + 1
  // and 2i. The ranks of a bidirectional pipeline so have the same shards of both of their stages
  // (layout::ShardPlaceOf), though the groups of these begin with different ranks. Precondition:
  // the layer was laid out for the rank's shard.
  LayerShards(const LayerParameters& layer, transport::Collective& group,
              bool in_reversed_pairs = false, Packing* packing = nullptr);

  // Adds the gradients of all ranks and their leaves, each shard on the rank that has it. The other
  // gradients mean nothing afterwards.  Errors: as the group's.
  absl::Status ReduceGradients(StepId step);

  // Returns how many blocks of backend::kSquaresPerBlock elements of the layer are in the norm.
  std::int64_t num_blocks() const;
  // Computes the sum of squares of each block of the rank's shard. The others become 0, so that
  // sums over the group are exact. The sums exist once `backend` has done what it was given.
  // blocks: num_blocks(), in host memory.
  absl::Status SumSquares(backend::Backend& backend, std::span<double> blocks) const;
  // Adds up the blocks of each parameter, or of each of its blocks of words, into its entry of the
  // norm exchange. A layer that is not the primary copy has no entries.
  // blocks: summed over the group. entries: of the norm exchange.
  void AddSquares(std::span<const double> blocks, std::span<double> entries) const;

  // Returns the parameters that this layer updates and of which this rank has a part
  // (ParameterRef::shard).
  std::vector<const ParameterRef*> Parts() const;

  // Copies the weights of the selected version from the rank that updates them to all others, and
  // packs those that the rank keeps packed alone.
  // Errors: as the group's; those of the device.
  absl::Status GatherWeights(StepId step);
  // Returns whether GatherWeights packs some of them, because the rank has only a shard in f32.
  bool packs() const;
  // Makes the weights whole where ParameterStore::Place has put them, from the shards that the
  // ranks keep. memory: of the lane.  Errors: also those of the device.
  absl::Status Unshard(StepId step, backend::MemoryBackend& memory);

 private:
  // The parameters of a unit.
  std::span<const ParameterRef> RefsOf(const layout::ShardUnit& unit) const {
    return std::span(layer_.refs).subspan(unit.first, unit.tensors.size());
  }
  bool PacksSome(std::span<const ParameterRef> refs) const;
  // Copies the shards of a unit's weights to all ranks, where they are whole.
  absl::Status Gather(StepId step, const layout::ShardUnit& unit);
  // Does the same if some of them are kept packed.
  absl::Status GatherAndPack(StepId step, const layout::ShardUnit& unit);
  // Copies the shards of a unit that lies at `begin` to all ranks.
  absl::Status GatherAt(StepId step, const layout::ShardUnit& unit, float* begin);

  const LayerParameters& layer_;
  transport::Collective& group_;
  std::vector<layout::ShardUnit> units_;  // with shards by rank of the group
  Packing* const packing_;
};

}  // namespace takt::train
