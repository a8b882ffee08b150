// SPDX-License-Identifier: Apache-2.0
#include "common/plan/worker_programs.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/model/head_slices.h"
#include "common/plan/copies.h"

namespace takt::plan {
namespace {

// Returns the first field of the job that programs before kAllFieldsProtocolVersion would pass
// over, or refuse without saying why; empty: there is none.
std::string_view NewFieldOf(const config::JobSpec& job) {
  using model::Family;
  if (job.evaluation.has_value()) return "evaluate";
  if (job.fp8 != model::Fp8Recipe::kNone) return "precision";
  if (job.parallelism.SharesOptimizer()) return "parallelism.shard";
  if (job.parallelism.tensor > 1) return "parallelism.tensor";
  if (job.parallelism.tensor_leaves > 1) return "parallelism.tensor_leaves";
  if (job.parallelism.context > 1) return "parallelism.context";
  if (job.barrier == config::Barrier::kNever) return "optimizer.barrier";
  const Family family = job.model.family;
  if (family == Family::kEmulated) {
    const bool has_bytes = job.model.parameter_bytes > 0 || job.model.collective_bytes > 0;
    return has_bytes ? "model" : "";
  }
  if (model::HasExperts(family) || family == Family::kQwen3 || family == Family::kMistral)
    return "model.family";
  if (job.lion.has_value()) return "optimizer.lion";
  if (job.sgd.has_value()) return "optimizer.sgd";
  if (job.muon.has_value()) return "optimizer.muon";
  if (!job.groups.empty()) return "optimizer.groups";
  if (job.lr_schedule.decay > config::LrDecay::kCosine) return "optimizer.lr_schedule.decay";
  if (job.SeparatesDocuments()) return "data.documents";
  return job.loss.label_smoothing != 0 || job.loss.z_loss != 0 ? "loss" : "";
}

// Returns the first field of the job with which workers older than kAllWaysProtocolVersion would
// train differently, or not at all; empty: there is none. That version also added buckets of
// gradients (BucketBytes).
std::string_view NewWayOf(const config::JobSpec& job, config::DeviceKind device) {
  // Ranks that split layers sum the embedding's rows. Older ones pass them on.
  if (job.parallelism.tensor > 1) return "parallelism.tensor";
  // Older ones meet in another order inside pairs.
  if (job.parallelism.context > 1) return "parallelism.context";
  if (job.parallelism.expert > 1) return "parallelism.expert";
  if (device != config::DeviceKind::kCuda) return "";
  if (job.parallelism.tensor_leaves > 1) return "parallelism.tensor_leaves";
  if (model::HasExperts(job.model.family)) return "model.family";
  if (job.muon.has_value()) return "optimizer.muon";
  return job.fp8 != model::Fp8Recipe::kNone ? "precision" : "";
}

// Returns the first field of the job that workers older than kDataLeavesProtocolVersion would pass
// over; empty: there is none.
std::string_view LeavesFieldOf(const config::JobSpec& job) {
  return job.parallelism.data_leaves > 0 ? "parallelism.data_leaves" : "";
}

// Returns the first field of the job that workers older than kResidualProtocolVersion would pass
// over, or whose copies they would read wrongly; empty: there is none.
std::string_view NewestFieldOf(const config::JobSpec& job, config::DeviceKind device) {
  static_assert(kAllCopiesProtocolVersion == kResidualProtocolVersion);
  static_assert(kForeseenShardsProtocolVersion == kResidualProtocolVersion);
  if (job.residual != model::Precision::kF32) return "residual";
  if (job.barrier == config::Barrier::kNever && job.parallelism.SharesOptimizer())
    return "optimizer.barrier";
  const bool copies = AsksForCopies(job) && job.model.family != model::Family::kEmulated;
  return copies && NeedsAllCopies(job, device) ? "checkpoint.in_memory" : "";
}

// Returns the field of the job with which workers older than kPackedShardsProtocolVersion would not
// meet the others; empty: there is none.
std::string_view ShardFieldOf(const config::JobSpec& job) {
  return job.parallelism.SharesOptimizer() && PacksShards(job) ? "parallelism.shard" : "";
}

// Returns the field of the job that workers older than kErrorFeedbackProtocolVersion would pass
// over; empty: there is none.
std::string_view FeedbackFieldOf(const config::JobSpec& job) {
  return job.error_feedback > 0 ? "optimizer.error_feedback" : "";
}

// Returns the field of the job with which workers older than kBf16StreamProtocolVersion would train
// differently; empty: there is none.
std::string_view StreamFieldOf(const config::JobSpec& job, config::DeviceKind device) {
  const bool streams =
      device == config::DeviceKind::kCuda && job.residual == model::Precision::kBf16;
  return streams ? "residual" : "";
}

// Returns the field of the job with which workers older than kStoredWeightsProtocolVersion would
// have other products; empty: there is none.
std::string_view StoredWeightsFieldOf(const config::JobSpec& job, config::DeviceKind device) {
  const model::Precisions precisions = config::PrecisionsOf(job, device);
  return precisions.ReadsWeightsAsStored() ? "precision" : "";
}

// Returns the field of the job that workers older than kGpuExpertsProtocolVersion refuse; empty:
// there is none.
std::string_view GpuExpertsFieldOf(const config::JobSpec& job, config::DeviceKind device) {
  const bool shares = device == config::DeviceKind::kCuda && job.parallelism.expert > 1;
  return shares ? "parallelism.expert" : "";
}

// Returns the field of the job that workers older than kCudaIpcProtocolVersion would pass over;
// empty: there is none.
std::string_view CudaIpcFieldOf(const config::JobSpec& job) {
  const bool copies = job.parallelism.transport == config::TransportKind::kCudaIpc;
  return copies ? "parallelism.transport" : "";
}

// Returns the field of the job with which workers older than kHeadSlicesProtocolVersion would have
// other products; empty: there is none.
std::string_view HeadSlicesFieldOf(const config::JobSpec& job, config::DeviceKind device) {
  if (device != config::DeviceKind::kCuda || job.model.family == model::Family::kEmulated)
    return "";
  const std::int64_t rows =
      std::int64_t{job.microbatch} * job.model.context / job.parallelism.context;
  return job.microbatch_auto || model::HeadSliceOf(rows, job.model.vocab) < rows
             ? "batch.microbatch"
             : "";
}

// Returns the field of the job whose programs workers older than kForeseenRowsProtocolVersion do
// not know; empty: there is none.
std::string_view ForeseenRowsFieldOf(const config::JobSpec& job) {
  const bool foresees = job.barrier == config::Barrier::kNever && job.parallelism.pipeline != 1 &&
                        job.parallelism.vocabulary == config::Vocabulary::kSpread;
  return foresees ? "optimizer.barrier" : "";
}

// A version that the job's workers must speak, and the field that needs it; empty: none does.
struct Need {
  int version;
  std::string_view field;
};

// Returns all of them, the newest version first.
std::array<Need, 12> NeedsOf(const config::JobSpec& job, config::DeviceKind device) {
  return {{{kForeseenRowsProtocolVersion, ForeseenRowsFieldOf(job)},
           {kCudaIpcProtocolVersion, CudaIpcFieldOf(job)},
           {kHeadSlicesProtocolVersion, HeadSlicesFieldOf(job, device)},
           {kGpuExpertsProtocolVersion, GpuExpertsFieldOf(job, device)},
           {kStoredWeightsProtocolVersion, StoredWeightsFieldOf(job, device)},
           {kBf16StreamProtocolVersion, StreamFieldOf(job, device)},
           {kErrorFeedbackProtocolVersion, FeedbackFieldOf(job)},
           {kPackedShardsProtocolVersion, ShardFieldOf(job)},
           {kDataLeavesProtocolVersion, LeavesFieldOf(job)},
           {kResidualProtocolVersion, NewestFieldOf(job, device)},
           {kAllWaysProtocolVersion, NewWayOf(job, device)},
           {kAllFieldsProtocolVersion, NewFieldOf(job)}}};
}

}  // namespace

bool PacksShards(const config::JobSpec& job) {
  return job.precision == config::Precision::kBf16 && job.fp8 == model::Fp8Recipe::kNone;
}

int NeededProtocol(const config::JobSpec& job, config::DeviceKind device) {
  for (const Need& need : NeedsOf(job, device)) {
    if (!need.field.empty()) return need.version;
  }
  if (job.parallelism.vocabulary == config::Vocabulary::kSpread) return kSpreadProtocolVersion;
  return kOldestProtocolVersion;
}

absl::Status CheckPrograms(const config::JobSpec& job, const PlanOptions& options) {
  for (const Need& need : NeedsOf(job, options.device)) {
    if (need.field.empty() || options.oldest_protocol >= need.version) continue;
    return InvalidField({.field = std::string(need.field),
                         .rule = "is not known to a worker, whose program is too old",
                         .fix = "upgrade takt-worker, or remove it"});
  }
  return absl::OkStatus();
}

}  // namespace takt::plan
