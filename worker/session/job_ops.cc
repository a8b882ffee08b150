// SPDX-License-Identifier: Apache-2.0
#include "worker/session/job_ops.h"

#include <algorithm>
#include <set>

#include "common/base/status.h"
#include "common/plan/plan.h"
#include "worker/train/meta_run.h"

namespace takt::session {

absl::Status ShowOps(const config::JobSpec& job, const mesh::Partition& partition,
                     config::DeviceKind device, const backend::OpListener& listener) {
  // The borders of stages change no op, but their recompute modes do. The first microbatch writes
  // the gradients to which the second one adds. So two microbatches on one rank in each mode show
  // every op. Where ranks split layers, the shapes are those of leaves, and one rank has them all.
  const int leaves = std::max(job.parallelism.tensor, job.parallelism.tensor_leaves);
  std::set<model::Recompute> modes;
  for (const mesh::Stage& stage : partition) modes.insert(stage.recompute);
  for (const model::Recompute mode : modes) {
    config::JobSpec whole = job;
    whole.global_batch = 2 * job.microbatch;
    whole.error_feedback = 0;  // needs another schedule, and multiplies nothing
    whole.parallelism = {.pipeline = 1, .data = 1, .schedule = "gpipe", .recompute = {mode}};
    if (leaves > 1) whole.parallelism.tensor_leaves = leaves;
    ASSIGN_OR_RETURN(const plan::Plan plan,
                     plan::MakePlan(whole, {.max_workers = 1, .device = device}));
    const bool validates = !plan.validation_programs.empty();
    const train::TrainerOptions options{
        .job = &whole,
        .model = &plan.model,
        .partition = &plan.partition,
        .program = &plan.programs.front(),
        .validation_program = validates ? &plan.validation_programs.front() : nullptr,
        .mesh = plan.mesh};
    RETURN_IF_ERROR(train::RunOnMeta(options, listener).status());
  }
  return absl::OkStatus();
}

}  // namespace takt::session
