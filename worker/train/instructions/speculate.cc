// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "common/program/remove_barrier.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

Bound BindForeseenRows(RankState& rank) {
  const SpreadState* const vocabulary = rank.vocabulary.get();
  if (vocabulary == nullptr)
    return absl::InvalidArgumentError("it foresees rows of a vocabulary that is not spread");
  if (!vocabulary->foreseen_table.has_value()) return engine::NothingToDo();  // no words
  return engine::MakeBound(nullptr, [&rank, vocabulary](StepId step) {
    return rank.optimizer->ForeseeRows(*vocabulary->rows_backend, *vocabulary->foreseen_table, step,
                                       step.value(),
                                       /*knows_norm=*/rank.foresight.HoldsIn(step));
  });
}

}  // namespace

// SPECULATE: makes the weights that OPT will make, beside the true ones, for the forwards of the
// next step. In a step that holds, the engine begins it after NORM_EXCHANGE.
Bound BindSpeculate(ProgramState& state, const program::Instruction& instruction) {
  if (program::ForeseesRows(instruction)) return BindForeseenRows(state.rank);
  const auto run = [&rank = state.rank](StepId step) -> absl::Status {
    RETURN_IF_ERROR(rank.optimizer->Foresee(*rank.compute, step, step.value(),
                                            /*knows_norm=*/rank.foresight.HoldsIn(step)));
    return rank.Pack(program::kForeseen);
  };
  return engine::MakeBound(state.rank.compute->stream(), run);
}

}  // namespace takt::train
