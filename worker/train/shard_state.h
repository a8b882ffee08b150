// SPDX-License-Identifier: Apache-2.0
// Trains all layers of a rank where the ranks that sum its gradients share the optimizer's state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/layout/rank_layout.h"
#include "worker/backend/backend.h"
#include "worker/train/layer_shards.h"
#include "worker/train/parameter_store.h"
#include "worker/train/trainer.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Not synchronised: the slots of the program order the calls. The lanes that make them are named
// with each.
class ShardState {
 public:
  // The layers of a stage, or the rank's rows, with the ranks that sum their gradients.
  struct Group {
    transport::Collective* replicas = nullptr;
    bool in_reversed_pairs = false;  // as LayerShards has it
    StageId stage{-1};               // of rows: the one after the last
    std::vector<const LayerParameters*> layers;
  };
  // groups: the same on all ranks of each group, in one order. What they point to is borrowed for
  // the object's life.  Errors: kResourceExhausted.
  // memory: of the reduce lane, borrowed likewise. gathered: ParameterStore::gathered.
  static absl::StatusOr<std::unique_ptr<ShardState>> Create(const std::vector<Group>& groups,
                                                            backend::MemoryBackend& memory,
                                                            float* gathered = nullptr);

  // Makes the state of a rank, with the groups of its stages and of its rows. Returns null if its
  // program shares nothing. layout, parameters: of the rank. memory: as Create's. What they point
  // to is borrowed for the object's life. Errors: also kInvalidArgument (a stage that nobody else
  // holds).
  static absl::StatusOr<std::unique_ptr<ShardState>> CreateFor(const TrainerOptions& options,
                                                               const layout::RankLayout& layout,
                                                               const ParameterStore& parameters,
                                                               backend::MemoryBackend& memory);

  // Returns the shards of a layer. Precondition: it is of a group.
  LayerShards& Of(const LayerParameters& layer);

  // Computes the sums of squares of the rank's shards. Compute lane.
  absl::Status SumSquares(backend::Backend& backend);
  // Passes them to the other ranks, and adds up those of all into the entries of the norm exchange.
  // Reduce lane.  Errors: as the groups'.
  absl::Status AddSquares(StepId step, std::span<double> entries);

  // Gathers the whole weights of a stage into the room that ParameterStore::Place has given them.
  // Reduce lane. Errors: as the groups'.
  absl::Status Unshard(StepId step, StageId stage);

  // Gathers the weights that GATHER_WEIGHTS would gather, from shards that were filled or loaded.
  // All ranks of the groups call it before their first instruction. Blocks: until it is done.
  // Errors: as the groups', those of the device.
  absl::Status GatherAll();

  // Returns the parameters of which the rank updates its shard.
  std::vector<const ParameterRef*> Parts() const;

 private:
  struct Layer {
    const LayerParameters* parameters = nullptr;
    LayerShards shards;
    std::int64_t first_block = 0;  // in blocks_
    StageId stage;
  };
  struct Blocks {
    transport::Collective* replicas = nullptr;
    std::int64_t first = 0, count = 0;
  };

  explicit ShardState(backend::MemoryBackend& memory) : memory_(memory) {}
  static absl::StatusOr<std::unique_ptr<Packing>> PackingOf(const Group& group,
                                                            backend::MemoryBackend& memory,
                                                            float* gathered);
  std::span<double> BlocksAt(std::int64_t first, std::int64_t count) const {
    auto* const all = reinterpret_cast<double*>(blocks_.data());
    return {all + first, static_cast<std::size_t>(count)};
  }

  backend::MemoryBackend& memory_;
  std::vector<std::unique_ptr<Packing>> packings_;  // by group; empty: no weights are packed so
  std::vector<Layer> layers_;
  std::vector<Blocks> blocks_of_;  // by group
  backend::Buffer blocks_;         // sums of squares, by layer and block, in host memory
};

}  // namespace takt::train
