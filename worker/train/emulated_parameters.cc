// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_parameters.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/status.h"

namespace takt::train {

using engine::Bound;
using program::Instruction;
using program::Op;

absl::StatusOr<std::unique_ptr<EmulatedParameters>> EmulatedParameters::Create(
    const TrainerOptions& options) {
  if (options.model->config.parameter_bytes == 0) return nullptr;
  TAKT_CHECK(options.backends != nullptr);
  std::unique_ptr<EmulatedParameters> state(new EmulatedParameters(options));
  state->layout_ = layout::LayOutRank({.model = *options.model,
                                       .partition = *options.partition,
                                       .program = *options.program,
                                       .num_replicas = options.mesh.num_replicas(),
                                       .replica = options.mesh.ReplicaOf(options.rank)});
  ASSIGN_OR_RETURN(state->compute_, options.backends->CreateCompute());
  TAKT_CHECK(state->compute_->memory_is_host());
  ASSIGN_OR_RETURN(
      state->parameters_,
      ParameterStore::Create(*options.model, state->layout_.parameters, *state->compute_,
                             /*second_copies=*/{}, /*rows=*/{}, state->layout_.whole));
  ASSIGN_OR_RETURN(state->reduce_, options.backends->CreateMemory(backend::StreamKind::kReduce));
  // Memory that nobody writes to is not resident.
  for (const LayerParameters& layer : state->parameters_->layers())
    std::ranges::fill(layer.gradients, 0.0F);
  for (const ParameterRef* const ref : state->parameters_->trained())
    std::fill_n(ref->kept_weights(), ref->kept_run().count, 0.0F);
  ASSIGN_OR_RETURN(state->shards_, ShardState::CreateFor(options, state->layout_,
                                                         *state->parameters_, *state->reduce_));
  ASSIGN_OR_RETURN(Optimizer optimizer,
                   Optimizer::Create(*options.job, *options.model, *state->parameters_,
                                     {.pipeline = options.pp_group}));
  state->optimizer_.emplace(std::move(optimizer));
  state->optimizer_->ShareWith(state->shards_.get());
  return state;
}

Bound EmulatedParameters::BindOverReplicas(const Instruction& instruction) {
  const auto found = options_.replicas.find(instruction.stage);
  if (found == options_.replicas.end())
    return absl::InvalidArgumentError("no other rank holds its stage");
  transport::Collective* const group = found->second;
  const LayerParameters& layer = parameters_->Layer(instruction.layer);
  LayerShards* const shards = shards_ == nullptr ? nullptr : &shards_->Of(layer);
  if (instruction.op == Op::kGatherWeights) {
    if (shards == nullptr) return absl::InvalidArgumentError("its program shares nothing");
    return engine::MakeBound(group->stream(),
                             [shards](StepId step) { return shards->GatherWeights(step); });
  }
  const auto run = [group, shards, gradients = layer.gradients](StepId step) {
    return shards != nullptr ? shards->ReduceGradients(step) : group->AllReduceSum(step, gradients);
  };
  return engine::MakeBound(group->stream(), run);
}

Bound EmulatedParameters::BindWhole(const Instruction& instruction) {
  const StageId stage = instruction.stage;
  if (shards_ == nullptr || !layout_.whole.stages.contains(stage))
    return absl::InvalidArgumentError("this rank does not hold its stage");
  const bool frees = instruction.op == Op::kReshard;
  return engine::MakeBound(nullptr, [this, stage, frees](StepId step) {
    if (frees) {
      parameters_->Free(stage);
      return absl::OkStatus();
    }
    parameters_->Place(stage);
    return shards_->Unshard(step, stage);
  });
}

Bound EmulatedParameters::Bind(const Instruction& instruction) {
  const program::Program& program = *options_.program;
  switch (instruction.op) {
    case Op::kReduceGrad:
    case Op::kGatherWeights:
      return BindOverReplicas(instruction);
    case Op::kUnshard:
    case Op::kReshard:
      return BindWhole(instruction);
    case Op::kNormPartial:
      if (program::IsAsynchronous(program)) return engine::NothingToDo();
      return engine::MakeBound(nullptr,
                               [this](StepId) { return optimizer_->NormPartial(*compute_); });
    case Op::kOptimizer: {
      const std::int64_t microbatch = instruction.microbatch.value();  // -1: after a step
      const std::int64_t updates = microbatch < 0 ? 1 : program.num_microbatches;
      return engine::MakeBound(nullptr, [this, microbatch, updates](StepId step) {
        const std::int64_t before =
            (step.value() - 1) * updates + std::max<std::int64_t>(microbatch, 0);
        return optimizer_->Update(*compute_, step, before + 1);
      });
    }
    case Op::kSpeculate:  // forwards read no weights, so it does not matter whether these are right
      return engine::MakeBound(nullptr, [this](StepId step) {
        return optimizer_->Foresee(*compute_, step, step.value(), /*knows_norm=*/false);
      });
    case Op::kSnapshot:
      return engine::MakeBound(nullptr,
                               [this](StepId) { return parameters_->SpreadNewest(*compute_); });
    default:
      return absl::InvalidArgumentError("it has nothing to do with parameters");
  }
}

}  // namespace takt::train
