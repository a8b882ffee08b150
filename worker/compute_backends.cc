// SPDX-License-Identifier: Apache-2.0
#include "worker/compute_backends.h"

#include "common/base/status.h"
#include "common/config/fp8_devices.h"
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
           .num_replicas = assignment.mesh.num_replicas(),
           .device = assignment.device,
           .vocabulary_ends = assignment.vocabulary_ends,
           .replica = assignment.mesh.ReplicaOf(assignment.rank),
           .leaves = assignment.job.parallelism.LeavesPerReplica(assignment.mesh.dp_size)})
          .bytes();
  predicted[MemoryKind::kProcess] = 0;
  return predicted;
}

// Returns whether ranks meet inside layers.
bool MeetInLayers(const control::Assignment& assignment) {
  return assignment.mesh.tp_size > 1 || assignment.job.parallelism.expert > 1;
}

// Returns whether ranks exchange by NCCL, where they have it.
bool UsesNccl(const control::Assignment& assignment) {
  using enum config::TransportKind;
  return assignment.transport == kAuto || assignment.transport == kNccl ||
         assignment.transport == kCudaIpc;
}

}  // namespace

int SmsForCommunication(const control::Assignment& assignment) {
  if (!UsesNccl(assignment)) return 0;
  constexpr int kOfChannels = 8, kOfGroups = 8;
  // Copy engines take none. A pair of ranks that cannot use them competes with products.
  const bool copies = assignment.transport == config::TransportKind::kCudaIpc;
  return (assignment.mesh.pp_size > 1 && !copies ? kOfChannels : 0) +
         (assignment.mesh.num_replicas() > 1 ? kOfGroups : 0) +
         (MeetInLayers(assignment) ? kOfGroups : 0);
}

std::int64_t BytesOfLibraries(const control::Assignment& assignment) {
  // Guesses, until docs/gpu-checks.md measures them.
  constexpr std::int64_t kMebi = std::int64_t{1} << 20;
  constexpr std::int64_t kHandles = 256 * kMebi;  // of cuBLASLt and cuDNN, and their kernels
  constexpr std::int64_t kRecordings = 32 * kMebi;
  constexpr std::int64_t kChannels = 4 * 16 * kMebi, kGroup = 32 * kMebi;
  std::int64_t bytes = kHandles + kRecordings;
  if (!UsesNccl(assignment)) return bytes;
  if (assignment.mesh.pp_size > 1) bytes += kChannels;
  if (assignment.mesh.num_replicas() > 1) bytes += 3 * kGroup;
  if (MeetInLayers(assignment)) bytes += kGroup;
  if (assignment.job.parallelism.expert > 1) bytes += kGroup;  // of those with the same experts
  return bytes;
}

absl::StatusOr<std::unique_ptr<backend::BackendFactory>> CreateComputeBackends(
    const ComputeOptions& options, const control::Assignment& assignment, int threads) {
  const bool emulated = assignment.job.model.family == model::Family::kEmulated;
  if (emulated || assignment.device != config::DeviceKind::kCuda) {
    return backend::CreateCpuBackends(
        {.threads = threads, .ledger = options.ledger, .fp8_counters = options.fp8_counters});
  }
  if (!options.device) {
    return absl::FailedPreconditionError(
        "the job computes on GPUs and this worker has none: it was started without --device cuda, "
        "or "
        "says in its log why it has none");
  }
  RETURN_IF_ERROR(config::CheckFp8On(assignment.job.fp8, *options.device));
  ASSIGN_OR_RETURN(const plugin::CudaEntry* const cuda,
                   plugin::LoadCuda(plugin::ModuleDirectory()));
  ASSIGN_OR_RETURN(const MemoryBytes predicted, PredictedOnDevice(assignment));
  const bool rounds_to_fp8 = assignment.job.fp8 != model::Fp8Recipe::kNone;
  return cuda->open_device({.device = options.device->index,
                            .predicted = predicted,
                            .beside_bytes = BytesOfLibraries(assignment),
                            .ledger = options.ledger,
                            .sms_for_communication = SmsForCommunication(assignment),
                            .any_order_attention = !assignment.job.exact,
                            .tune = true,  // by one rank, for all (session/kernel_plan.h)
                            .fp8_counters = rounds_to_fp8 ? options.fp8_counters : nullptr});
}

}  // namespace takt
