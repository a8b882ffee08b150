// SPDX-License-Identifier: Apache-2.0
// What F, I, W, B and O resolve alike when they are bound.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/program/compute_part.h"
#include "worker/engine/bound_instruction.h"
#include "worker/train/program_state.h"
#include "worker/train/stage.h"

namespace takt::train {

// Where F of one microbatch leaves its loss. Stages but the last have none.
class LossPlace {
 public:
  explicit LossPlace(bool gradient) : gradient_(gradient) {}
  // scored: what the gradient is divided by, as LOAD counts it.
  LossPlace(bool gradient, const StepLosses& losses, MicrobatchId microbatch,
            const std::int64_t& scored);

  // What F gives in this step. It also notes the count by which it divides the gradient.
  LossCall In(StepId step) const;

 private:
  bool gradient_;
  const std::int64_t* scored_ = nullptr;  // null: this is not the last stage
  StepLosses::Microbatch* places_[StepLosses::kSteps] = {};
};

// The F of a microbatch, or that half of an O.
struct ForwardPart {
  Stage& stage;
  StageBuffers buffers;
  LossPlace loss;
  int version;  // of the weights
};

// An I, the W of one or more microbatches, a B, or that half of an O.
struct BackwardPart {
  Stage& stage;
  StageBuffers buffers;  // of the first microbatch
  int version;           // of the weights
  bool& has_gradients;   // the stage's, of RankState

  // Whether W adds to gradients that are there. From now on there are some: one call for each W.
  bool Accumulates() const { return std::exchange(has_gradients, true); }
};

// These resolve a part. Errors: kInvalidArgument (it does not agree with the rank's partition).
absl::StatusOr<ForwardPart> ResolveForward(ProgramState& state,
                                           const program::ComputePart& forward);
// weights: the slots that name the version; those that the instruction reads.
absl::StatusOr<BackwardPart> ResolveBackward(ProgramState& state,
                                             const program::ComputePart& backward,
                                             std::span<const SlotId> weights);

// An I and a W apart from each other need a slot for what I recomputes, if the stage recomputes.
// Errors: kInvalidArgument (there is none).
absl::Status CheckApart(const BackwardPart& part);

// Binds a part whose ops may be recorded.
// arguments_of: PartArguments(StepId), but for the weights; called once each time it runs.
// ops: absl::Status(const PartArguments&), gives the ops to the backend and does nothing else.
template <typename ArgumentsOf, typename Ops>
std::unique_ptr<engine::BoundInstruction> BindPart(ProgramState& state, int version,
                                                   const PartBuffers& buffers,
                                                   ArgumentsOf arguments_of, Ops ops) {
  const auto run = [&parameters = *state.rank.parameters, &replays = state.replays.PartOf(buffers),
                    version, arguments_of, ops](StepId step) {
    parameters.SelectVersion(version);
    PartArguments arguments = arguments_of(step);
    arguments.weights = parameters.selected_place();
    return replays.Run(arguments, [&] { return ops(arguments); });
  };
  return engine::MakeBound(state.rank.compute->stream(), run);
}

}  // namespace takt::train
