// SPDX-License-Identifier: Apache-2.0
#include "worker/train/optimizer.h"

#include "common/base/status.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// OPT: updates all weights of the rank, after a step or after one of its microbatches.
Bound BindOptimizer(ProgramState& state, const program::Instruction& instruction) {
  RankState& rank = state.rank;
  if (program::IsAsynchronous(state.program) && config::TraitsOf(*rank.options.job).clip_norm > 0) {
    return absl::InvalidArgumentError(
        "a program without a flush has no norm of all gradients, to which its job clips");
  }
  const std::int64_t microbatch = instruction.microbatch.value();  // -1: after a step
  const bool is_step_late = program::IsAsynchronous(state.program) && microbatch < 0;
  if (rank.options.job->error_feedback > 0 && !is_step_late) {
    return absl::InvalidArgumentError(
        "the job feeds errors of late gradients back, and the program's are not a step late");
  }
  const std::int64_t updates_per_step = microbatch < 0 ? 1 : state.program.num_microbatches;
  const std::int64_t before_in_step = microbatch < 0 ? 0 : microbatch;
  const auto run = [&rank, &replays = state.replays, updates_per_step,
                    before_in_step](StepId step) -> absl::Status {
    for (auto& [stage, has_gradients] : rank.has_gradients) has_gradients = false;
    if (SpreadState* const vocabulary = rank.vocabulary.get())
      vocabulary->head_has_gradients = vocabulary->table_has_gradients = false;
    const std::int64_t before = (step.value() - 1) * updates_per_step + before_in_step;
    RETURN_IF_ERROR(rank.optimizer->Update(*rank.compute, step, before + 1));
    // Every kind of part has run by now.
    replays.Start();
    return rank.Pack();
  };
  return engine::MakeBound(rank.compute->stream(), run);
}

}  // namespace takt::train
