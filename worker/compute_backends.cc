// SPDX-License-Identifier: Apache-2.0
#include "worker/compute_backends.h"

#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/model/model.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/plugin/loader.h"

namespace takt {
namespace {

// Returns the device memory that the plan predicts. The prediction for the process and for the copy
// of a checkpoint is host memory, so it leaves these out.
absl::StatusOr<MemoryBytes> PredictedOnDevice(const control::Assignment& assignment) {
  ASSIGN_OR_RETURN(
      const model::Model model,
      config::BuildModelOf(assignment.job, assignment.job.microbatch, assignment.device,
                           assignment.mesh.TpRankOf(assignment.rank)));
  MemoryBytes predicted =
      layout::LayOutRank(
          {.model = model,
           .partition = assignment.partition,
           .program = assignment.program,
           .validation = assignment.validation_program ? &*assignment.validation_program : nullptr,
           .dp_size = assignment.mesh.dp_size,
           .device = assignment.device,
           .vocabulary_ends = assignment.vocabulary_ends,
           .replica = assignment.mesh.DpRankOf(assignment.rank).value()})
          .bytes();
  predicted[MemoryKind::kProcess] = 0;
  return predicted;
}

}  // namespace

absl::StatusOr<std::unique_ptr<backend::BackendFactory>> CreateComputeBackends(
    const ComputeOptions& options, const control::Assignment& assignment, int threads) {
  const bool emulated = assignment.job.model.family == model::Family::kEmulated;
  if (emulated || assignment.device != config::DeviceKind::kCuda)
    return backend::CreateCpuBackends({.threads = threads, .ledger = options.ledger});
  if (!options.device) {
    return absl::FailedPreconditionError(
        "the job computes on GPUs and this worker has none: it was started without --device cuda, "
        "or "
        "says in its log why it has none");
  }
  ASSIGN_OR_RETURN(const plugin::CudaEntry* const cuda,
                   plugin::LoadCuda(plugin::ModuleDirectory()));
  ASSIGN_OR_RETURN(const MemoryBytes predicted, PredictedOnDevice(assignment));
  return cuda->open_device({.device = options.device->index,
                            .predicted = predicted,
                            .ledger = options.ledger,
                            .tune = true});  // by one rank, for all (session/kernel_plan.h)
}

}  // namespace takt
