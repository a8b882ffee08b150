// SPDX-License-Identifier: Apache-2.0
// Says what a rank of an emulated model trains where its layers have parameters. Their values mean
// nothing, but they take the memory, the messages and the updates of real ones.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/layout/rank_layout.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/engine/bound_instruction.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/shard_state.h"
#include "worker/train/trainer.h"

namespace takt::train {

// Not synchronised: the slots of the program order the instructions that use it.
class EmulatedParameters {
 public:
  // Returns null if the layers have no parameters. Precondition: options.backends makes backends of
  // host memory, if they have.  Errors: kResourceExhausted, and those of ShardState.
  static absl::StatusOr<std::unique_ptr<EmulatedParameters>> Create(const TrainerOptions& options);

  // Binds REDUCE_GRAD, NORM_PARTIAL, OPT, SPECULATE, GATHER_WEIGHTS, UNSHARD, RESHARD or SNAPSHOT.
  engine::Bound Bind(const program::Instruction& instruction);
  // Does what NORM_EXCHANGE does for parameters.  Errors: as the groups'.
  absl::Status Exchange(StepId step) { return optimizer_->Exchange(step, {}).status(); }

 private:
  explicit EmulatedParameters(const TrainerOptions& options) : options_(options) {}
  engine::Bound BindOverReplicas(const program::Instruction& instruction);
  // Binds UNSHARD or RESHARD.
  engine::Bound BindWhole(const program::Instruction& instruction);

  const TrainerOptions options_;
  layout::RankLayout layout_;
  std::unique_ptr<backend::Backend> compute_;       // outlives every buffer below
  std::unique_ptr<backend::MemoryBackend> reduce_;  // the reduce lane's
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<ShardState> shards_;  // null: each rank has the optimizer's state of all it holds
  std::optional<Optimizer> optimizer_;
};

}  // namespace takt::train
