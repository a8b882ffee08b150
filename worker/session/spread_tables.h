// SPDX-License-Identifier: Apache-2.0
// The tables of a vocabulary that is spread, on their way to checkpoints. Checkpoints have whole
// tables, whoever trains which rows of them, so one rank of a pipeline takes the rows of all.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/control/assignment.h"
#include "common/model/model.h"
#include "worker/checkpoint/layer_state.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/session/moment_shards.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::session {

// One caller at a time, which also calls nothing else of the group.
class SpreadTables {
 public:
  // assignment: it spreads the vocabulary. group: of its pipeline. moments: null if no ranks share
  // the optimizer's state. All are borrowed for the object's life; the group only by Join.
  SpreadTables(const control::Assignment& assignment, const model::Model& model,
               const train::ParameterStore& store, transport::Collective& group,
               const MomentShards* moments = nullptr);

  // Adds the tables that this rank writes, with its own rows of them, to the layers that it writes.
  void AddWritten(std::vector<worker_checkpoint::LayerState>& layers) const;

  // Copies the rows of all other ranks into the snapshots of those that write them. Call it after
  // the snapshot was taken.  Blocks: until all ranks of the pipeline do the same, and those that
  // share the optimizer's state.
  // Errors: as transport::Collective.
  absl::Status Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const;

 private:
  struct Table {
    LayerId layer;  // the one that owns it
    const model::Parameter* parameter = nullptr;
    const train::ParameterRef* rows = nullptr;  // this rank's; null: none
    int writer = 0;                             // the pp rank with the layer
    bool by_this_replica = false;               // which writes it
  };
  bool Writes(const Table& table) const {
    return table.by_this_replica && table.writer == group_.index();
  }
  void AddTables(LayerId layer);
  // Passes `mine`, values of this rank's rows, to the rank of the pipeline that writes the table.
  // whole: all rows, on that rank.
  absl::Status Pass(StepId step, const Table& table, std::span<const float> mine,
                    std::span<float> whole) const;
  // Passes moment 1 or 2 of all ranks' rows.
  absl::Status PassMoment(StepId step, const Table& table, int number,
                          std::span<float> whole) const;

  const control::Assignment& assignment_;
  const model::Model& model_;
  const train::ParameterStore& store_;
  transport::Collective& group_;
  const MomentShards* const moments_;
  std::vector<Table> tables_;  // constant after construction
};

}  // namespace takt::session
