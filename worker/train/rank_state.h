// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/layout/rank_layout.h"
#include "worker/backend/backend.h"
#include "worker/train/loss_share.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/result_ring.h"
#include "worker/train/section_memory.h"
#include "worker/train/stage.h"
#include "worker/train/trainer.h"

namespace takt::train {

// What the instructions of a rank share, whichever program they are of. The slots of the programs
// order those that use it; each part says which lane changes it while a program runs.
struct RankState {
  // Checks that the programs are of the rank's job and partition, and makes the backends, the
  // memory of the parameters, and the stages. Weights are zero until the trainer fills them.
  // Errors: kInvalidArgument (a program does not agree), kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RankState>> Create(const TrainerOptions& options);

  explicit RankState(const TrainerOptions& options) : options(options) {}

  // The group with which the gradients of a stage are summed; null: no other rank holds it.
  transport::Collective* ReplicasOf(StageId stage) const;
  ResultGroups Groups() const;

  const TrainerOptions options;
  layout::RankLayout layout;
  std::unique_ptr<backend::Backend> compute;  // of the compute lane; outlives every buffer below
  std::unique_ptr<backend::MemoryBackend> reduce;  // of the reduce lane
  std::unique_ptr<backend::MemoryBackend> load;    // of the load lane
  std::unique_ptr<ParameterStore> parameters;      // the compute lane selects and updates weights
  SectionMemory shared;
  std::byte* scratch = nullptr;
  float* rotary_table = nullptr;  // null: the model's family turns nothing
  std::map<StageId, Stage> stages;
  // Whether W of a stage have left gradients to add to since the last OPT. Of the compute lane.
  std::map<StageId, bool> has_gradients;
  // The trainer sets it when the weights are there, before it binds.
  std::optional<Optimizer> optimizer;
  ResultRing results;  // of the reduce lane

 private:
  absl::Status CreateParameters();
  absl::Status CreateStages();
  absl::Status AllocateShared();
};

}  // namespace takt::train
