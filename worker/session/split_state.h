// SPDX-License-Identifier: Apache-2.0
// Brings the state of layers that several ranks split into checkpoints. Checkpoints have whole
// tensors, whoever has which pieces of them, so the rank that writes a layer takes the pieces of
// all. So a job resumes from them with any number of ranks.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/model/model.h"
#include "common/model/split_layers.h"
#include "worker/checkpoint/layer_state.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::session {

// It has one caller at a time, which makes no other call of the group meanwhile. The group passes
// host memory, wherever the store is.
class SplitState {
 public:
  // model: this rank's; its layers are split. group: of the ranks that split them; null: there is
  // one. All are borrowed for the object's life; the group only by Join.
  SplitState(const control::Assignment& assignment, const model::Model& model,
             const train::ParameterStore& store, transport::Collective* group);

  // Returns the model as checkpoints have it, to whose parameters WrittenState refers.
  const model::Model& whole() const { return whole_; }

  // Returns the layers whose files this rank writes (layout::WriterOf, layout::WriterAmongSplit),
  // without any values: Join brings those.
  std::vector<worker_checkpoint::LayerState> WrittenState() const;

  // Returns where that of a parameter goes of which replicas have shards (moment_shards.h): the
  // moments of what this rank has of it, and its weight unless the rank has that whole. Join takes
  // them from there.
  worker_checkpoint::ParameterTarget JoinedOf(LayerId layer, const model::Parameter& parameter);

  // Copies the state of all ranks into the snapshots of those that write it. Call it after the
  // snapshot was taken.  Blocks: until all ranks of the group do the same.
  // Errors: as transport::Collective.
  absl::Status Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const;

 private:
  // What shards were joined to.
  struct Joined {
    std::vector<float> weight, m, v;  // weight: empty if the rank has it whole
  };
  int index() const { return model_.tensor.index; }
  int WriterOf(LayerId layer) const;
  // Returns the use of a parameter of this rank's model by the layer that owns it, or null if
  // nothing of it is here.
  const train::ParameterRef* RefOf(LayerId layer, const model::Parameter& parameter) const;
  // Calls `visit` for each run that a rank gives of a parameter: none, if an earlier rank has the
  // same pieces.
  absl::Status ForEachRunOf(const model::Parameter& parameter, int rank,
                            absl::FunctionRef<absl::Status(const model::ElementRun&)> visit) const;
  // Gathers a parameter of which each rank has a part on the rank `writer`. mine: this rank's
  // values, in host memory. whole: gets all values, on that rank.
  absl::Status Pass(StepId step, const model::Parameter& parameter, int writer,
                    std::span<const float> mine, std::span<float> whole) const;
  // Does the same for values that are where the store is.
  absl::Status PassStored(StepId step, const model::Parameter& parameter, int writer,
                          std::span<const float> mine, std::span<float> whole) const;

  const control::Assignment& assignment_;
  const model::Model& model_;
  const model::Model whole_;
  const train::ParameterStore& store_;
  transport::Collective* const group_;
  std::vector<LayerId> layers_;  // of this pp rank, which this replica writes
  std::map<const model::Parameter*, Joined> joined_;
};

}  // namespace takt::session
