// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/model_counts.h"

#include <variant>

#include "common/base/status.h"
#include "common/plan/plan.h"
#include "worker/train/meta_run.h"

namespace takt::bench {
namespace {

// Has what the second of two microbatches does, and what no microbatch does.
struct StepCounts {
  OpCount forward, input_grad, weight_grad, rest;
};

absl::StatusOr<StepCounts> CountStep(const TrainJobOptions& options, int layers) {
  config::JobSpec job = TrainJob(options);
  job.model.layers = layers;
  job.global_batch = 2 * options.Microbatch();
  job.parallelism.recompute = {model::Recompute::kNone};
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(job, {.max_workers = 1, .device = config::DeviceKind::kCuda}));
  StepCounts counts;
  const program::Instruction* current = nullptr;
  const auto count = [&](const backend::Op& op) {
    const OpCount counted = CountOp(op);
    if (current == nullptr) return absl::OkStatus();  // before the first step
    // Weights are packed once a step, in the first microbatch that needs them.
    if (current->microbatch.value() < 0 || std::holds_alternative<backend::PackBf16>(op)) {
      counts.rest += counted;
    } else if (current->microbatch == MicrobatchId(1)) {
      const bool is_forward = current->op == program::Op::kForward;
      (is_forward         ? counts.forward
       : IsWeightGrad(op) ? counts.weight_grad
                          : counts.input_grad) += counted;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(train::RunOnMeta({.job = &job,
                                    .model = &plan.model,
                                    .partition = &plan.partition,
                                    .program = &plan.programs.front(),
                                    .mesh = plan.mesh},
                                   count,
                                   [&](const program::Instruction& next) { current = &next; })
                      .status());
  return counts;
}

OpCount Difference(OpCount more, const OpCount& less) { return more += less * -1; }

}  // namespace

OpCount ModelCounts::Block() const {
  OpCount block = forward;
  block += input_grad;
  return block += weight_grad;
}

absl::StatusOr<ModelCounts> CountModel(const TrainJobOptions& options) {
  const int layers = Models().at(options.model).layers;
  // All blocks are alike, so a further one is the difference of two depths.
  ASSIGN_OR_RETURN(const StepCounts one, CountStep(options, 1));
  ASSIGN_OR_RETURN(const StepCounts two, CountStep(options, 2));
  ASSIGN_OR_RETURN(const StepCounts all, CountStep(options, layers));
  ModelCounts counts{.forward = Difference(two.forward, one.forward),
                     .input_grad = Difference(two.input_grad, one.input_grad),
                     .weight_grad = Difference(two.weight_grad, one.weight_grad),
                     .microbatch = all.forward,
                     .rest = all.rest,
                     .tokens = static_cast<double>(options.Microbatch()) * options.context};
  counts.microbatch += all.input_grad;
  counts.microbatch += all.weight_grad;
  return counts;
}

}  // namespace takt::bench
