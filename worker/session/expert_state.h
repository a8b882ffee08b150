// SPDX-License-Identifier: Apache-2.0
// Brings the state of experts that several ranks share into checkpoints. Checkpoints have all
// experts of a block in one file, so the rank that writes it takes those of the others. So a job
// resumes from them with any number of ranks that share experts.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/model/model.h"
#include "worker/checkpoint/layer_state.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::session {

// One caller at a time, which also calls nothing else of the group, and nothing of the store's
// backend.
class ExpertState {
 public:
  // model: this rank's; ranks share its experts. group: of these ranks, in their order, in host
  // memory. All are borrowed for the object's life.
  ExpertState(const control::Assignment& assignment, const model::Model& model,
              const train::ParameterStore& store, transport::Collective& group);

  // Adds the experts of other ranks to the layers that this rank writes, without any values: Join
  // brings those.
  void AddAway(std::vector<worker_checkpoint::LayerState>& written) const;

  // Copies the state of all ranks into the snapshots of those that write it. Call it after the
  // snapshot was taken.  Blocks: until all ranks of the group do the same.
  // Errors: as transport::Collective.
  absl::Status Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const;

 private:
  // Returns the rank of the group that has the expert of a parameter.
  int OwnerOf(const model::Parameter& parameter) const;
  // Copies what the owner has to the writer. mine: on the owner, in the store's memory. whole: on
  // the writer.
  absl::Status Pass(StepId step, int owner, int writer, std::span<const float> mine,
                    std::span<float> whole) const;
  absl::Status JoinParameter(StepId step, LayerId layer, const model::Parameter& parameter,
                             int writer, const worker_checkpoint::Snapshot& snapshot) const;

  const control::Assignment& assignment_;
  const model::Model& model_;
  const train::ParameterStore& store_;
  transport::Collective& group_;
};

}  // namespace takt::session
