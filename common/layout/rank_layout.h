// SPDX-License-Identifier: Apache-2.0
// Says where every tensor of a rank lies. The planner adds this description up, the worker
// allocates from it, and people read it. Nothing else computes a size.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "common/config/job_spec.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/slot_layout.h"
#include "common/layout/tensor.h"
#include "common/layout/vocabulary_layout.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::layout {

struct RankInputs {
  const model::Model& model;  // references are borrowed; the model for the layout's life
  const mesh::Partition& partition;
  const program::Program& program;
  const program::Program* validation = nullptr;  // null: the job has no validation set
  bool saves = false;                            // the job writes checkpoints
  int num_replicas = 1;                          // mesh::Mesh's, which share the writing
  std::int64_t copy_bytes = 0;                   // of all copies of the state that it keeps
  config::DeviceKind device = config::DeviceKind::kCpu;
  mesh::VocabularyEnds vocabulary_ends = {};  // empty: the vocabulary is not spread
  // Says which of the replicas this rank is, if they share the optimizer's state. -1: any of them
  // (ShardPlace).
  int replica = -1;
  int leaves = 1;  // of each replica (config::Parallelism::data_leaves)
};

struct RankLayout {
  const model::Model* model = nullptr;
  StageLayouts stages;  // the contents of one slot of a stage's stash, and of scratch
  std::optional<VocabularyLayout> vocabulary;  // set exactly if the vocabulary is spread
  // worker/train allocates these, in this order.
  Section parameters;
  WholeWeights whole;        // empty unless the rank frees weights
  Section rows;              // of the tables, those of the rank, if the vocabulary is spread
  Section shared;            // all stages share it: the rotary table and scratch
  Section slots;             // of the program
  Section validation_slots;  // of the validation program
  // Other parts of the worker allocate these.
  Section gpu;       // the GPU backend takes at most this
  Section snapshot;  // of worker/checkpoint, in the host's memory; of the replica that writes most
  Section copies;    // likewise, for recovery
  Section process;   // everything else: code, threads, kernels, channels

  std::array<const Section*, 10> sections() const {
    return {&parameters,       &whole.places, &rows,     &shared, &slots,
            &validation_slots, &gpu,          &snapshot, &copies, &process};
  }
  // Returns the resident bytes of the process at its peak, by kind.
  MemoryBytes bytes() const;
};

// Preconditions: the program's stages are those of the partition, and it spreads the vocabulary
// exactly if the inputs say where.
RankLayout LayOutRank(const RankInputs& inputs);

// Returns which shards of its layers a rank has. The ranks with both copies of the layers of a
// bidirectional pipeline share them by pp rank, whichever copy they have. So both stages of a rank
// have the same place. replica: -1 for any.
ShardPlace ShardPlaceOf(const program::Program& program, int replica, int num_replicas);

// Returns which of the replicas that hold a layer writes it to checkpoints (mesh::Mesh::ReplicaOf).
inline int WriterOf(LayerId layer, int num_replicas) { return layer.value() % num_replicas; }

// Returns which of the ranks that split a layer, among those of WriterOf, writes it.
inline TpRank WriterAmongSplit(LayerId layer, int num_replicas, int tp_size) {
  return TpRank(layer.value() / num_replicas % tp_size);
}

// Returns a table with a row for each allocation and each tensor, and the sums by kind.
std::string ToString(const RankLayout& layout);

}  // namespace takt::layout
