// SPDX-License-Identifier: Apache-2.0
// F, I, W and B resolve this in the same way when they are bound, and S, T and LOSS some of it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/program/compute_part.h"
#include "worker/engine/bound_instruction.h"
#include "worker/train/program_state.h"
#include "worker/train/stage.h"

namespace takt::train {

// Returns a microbatch of a kTokens slot.
TokenView ViewOf(const ProgramState& state, SlotId tokens, MicrobatchId microbatch);

// Says where the loss of a microbatch, and what else its F or B reports, goes. By default it goes
// nowhere.
struct BoundLoss {
  // The count by which the gradient is divided, as LOAD counts it.
  const std::int64_t* scored = nullptr;
  StepLosses::Microbatch* places[StepLosses::kSteps] = {};  // by the step's remainder
  // Says where the rows of experts are counted, by the step's remainder; null: nowhere.
  std::int32_t* expert_counts[ExpertCounts::kSteps] = {};

  // Returns the loss call in this step. It also notes the count by which the gradient is divided.
  LossCall Call(StepId step) const;
};
BoundLoss ResolveLoss(const ProgramState& state, SlotId tokens, MicrobatchId microbatch);

// An F, I, W or B of one microbatch.
struct BoundPart {
  Stage& stage;
  StageBuffers buffers;
  int version = 0;      // of the weights
  bool& has_gradients;  // the stage's entry in RankState
  bool begins_leaf = false;
  BoundLoss loss;  // of the part of the last stage that computes the loss

  // Returns whether W adds to existing gradients, and notes that there are some from now on. Call
  // it once for each W.
  bool Accumulates() const { return std::exchange(has_gradients, true) && !begins_leaf; }
};

// weights: the slots that name the weights among all that the instruction reads. beside: it is the
// B of a pair that runs beside its F. Errors: kInvalidArgument (the part does not agree with the
// rank's partition).
absl::StatusOr<BoundPart> ResolvePart(ProgramState& state, const program::ComputePart& part,
                                      std::span<const SlotId> weights, bool beside = false);

// Binds a W or B together with what the last one of a leaf does after it (RankState::KeepLeaf).
// backend: of its lane, or of its half of a pair; borrowed.
std::unique_ptr<engine::BoundInstruction> KeepingLeaf(
    ProgramState& state, const program::Instruction& instruction, backend::Backend& backend,
    std::unique_ptr<engine::BoundInstruction> bound);

// Binds an F, I, W or B whose ops may be recorded.
// arguments_of: PartArguments(StepId), without the place of the weights; it is called once each
// time that the instruction runs. ops: absl::Status(const PartArguments&), gives the ops to the
// backend and does nothing else.
template <typename ArgumentsOf, typename Ops>
std::unique_ptr<engine::BoundInstruction> BindPart(ProgramState& state, int version,
                                                   const PartBuffers& buffers,
                                                   ArgumentsOf arguments_of, Ops ops) {
  const auto run = [&rank = state.rank, &parameters = *state.rank.parameters,
                    &replays = state.replays.PartOf(buffers),
                    stages = std::array{buffers.forward_stage, buffers.backward_stage}, version,
                    arguments_of, ops](StepId step) -> absl::Status {
    RETURN_IF_ERROR(rank.ReadyWeights(stages, version, engine::PairHalf::kForward));
    if (rank.meetings != nullptr) rank.meetings->BeginStep(step);
    if (rank.experts != nullptr) rank.experts->BeginStep(step);
    if (rank.context != nullptr) rank.context->BeginStep(step);
    PartArguments arguments = arguments_of(step);
    arguments.weights = parameters.selected_place();
    return replays.Run(arguments, [&] { return ops(arguments); });
  };
  return engine::MakeBound(state.rank.compute->stream(), run);
}

}  // namespace takt::train
