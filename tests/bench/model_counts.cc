// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/model_counts.h"

#include <algorithm>
#include <variant>

#include "common/base/status.h"
#include "common/plan/plan.h"
#include "common/program/part_lists.h"
#include "worker/train/meta_run.h"

namespace takt::bench {
namespace {

// Has what the second of two microbatches does, and what no microbatch does.
struct StepCounts {
  OpCount forward, input_grad, weight_grad, rest;
  double meetings = 0;
};

absl::StatusOr<StepCounts> CountStep(const TrainJobOptions& options, int tensor, int layers) {
  config::JobSpec job = TrainJob(options);
  job.model.layers = layers;
  job.global_batch = 2 * options.Microbatch();
  job.parallelism.recompute = {model::Recompute::kNone};
  job.parallelism.tensor = tensor;
  ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(job, {.max_workers = tensor, .device = config::DeviceKind::kCuda}));
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
                                   [&](const program::Instruction& next) {
                                     current = &next;
                                     if (next.microbatch != MicrobatchId(1)) return;
                                     counts.meetings += static_cast<double>(std::ranges::count_if(
                                         program::PartListOf(next, plan.programs.front()),
                                         &program::Part::meets));
                                   })
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

absl::StatusOr<ModelCounts> CountModel(const TrainJobOptions& options, int tensor) {
  const int layers = Models().at(options.model).layers;
  // All blocks are alike, so a further one is the difference of two depths.
  ASSIGN_OR_RETURN(const StepCounts one, CountStep(options, tensor, 1));
  ASSIGN_OR_RETURN(const StepCounts two, CountStep(options, tensor, 2));
  ASSIGN_OR_RETURN(const StepCounts all, CountStep(options, tensor, layers));
  ModelCounts counts{.forward = Difference(two.forward, one.forward),
                     .input_grad = Difference(two.input_grad, one.input_grad),
                     .weight_grad = Difference(two.weight_grad, one.weight_grad),
                     .microbatch = all.forward,
                     .rest = all.rest,
                     .meetings = two.meetings - one.meetings,
                     .tokens = static_cast<double>(options.Microbatch()) * options.context};
  counts.microbatch += all.input_grad;
  counts.microbatch += all.weight_grad;
  return counts;
}

}  // namespace takt::bench
