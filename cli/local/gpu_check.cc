// SPDX-License-Identifier: Apache-2.0
#include "cli/local/gpu_check.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/device_serde.h"
#include "common/base/status.h"
#include "common/config/fp8_devices.h"
#include "common/plan/offers.h"

namespace takt::cli {
namespace {

using config::DeviceKind;
using config::TransportKind;

// The error has the field, with its value, by which the job computes on GPUs.
FieldError NoGpu(const config::Parallelism& parallelism) {
  const bool device = parallelism.device == DeviceKind::kCuda;
  const bool nccl = parallelism.transport == TransportKind::kNccl;
  return {.field = device ? "parallelism.device" : "parallelism.transport",
          .value = device ? "cuda"
                   : nccl ? "nccl"
                          : "cuda_ipc",
          .rule = "needs workers with a GPU, and no worker of this machine has one",
          .fix = "leave it out, or run the job where there are GPUs and their driver"};
}

FieldError TooFewForNccl(int least, std::size_t most) {
  return {
      .field = "parallelism.transport",
      .value = "nccl",
      .rule = absl::StrCat("needs NCCL and a GPU of its own for each rank; the job begins with ",
                           Counted(least, "rank"), ", and this machine has ", most,
                           most == 1 ? " such GPU" : " such GPUs"),
      .fix = "use transport auto or cuda_ipc, by which ranks may share a GPU, or fewer ranks"};
}

FieldError TooFew(const config::Parallelism& parallelism, int least, std::size_t most) {
  return {.field = "parallelism.device",
          .value = parallelism.device == DeviceKind::kCuda ? "cuda" : "auto",
          .rule = absl::StrCat("the job computes on GPUs and begins with ", Counted(least, "rank"),
                               ", and ", most, " of the workers of this machine can hold one"),
          .fix = "use cpu with transport auto, or fewer ranks"};
}

}  // namespace

int LeastRanks(const config::JobSpec& job) {
  return job.LeastPipeline() * job.LeastData() * job.parallelism.RanksPerReplica();
}

absl::Status CheckGpus(const config::JobSpec& job, const std::vector<v1::Worker>& workers) {
  const bool any_gpu = std::ranges::any_of(workers, &v1::Worker::has_device);
  if (plan::DeviceOf(job, DeviceKind::kAuto, any_gpu) != DeviceKind::kCuda) return absl::OkStatus();
  if (!any_gpu) return InvalidField(NoGpu(job.parallelism));
  const bool nccl = job.parallelism.transport == TransportKind::kNccl;
  std::size_t most = 0;             // ranks that these workers can hold
  std::set<std::string> nccl_gpus;  // uuids
  std::optional<Device> refusing;   // does not multiply as the job does
  for (const v1::Worker& worker : workers) {
    if (!worker.has_device() || (nccl && !worker.has_nccl())) continue;
    const Device device = FromProto(worker.device());
    if (config::MostFp8On(device) < job.fp8) {
      refusing = device;
      continue;
    }
    if (!nccl || nccl_gpus.insert(device.uuid).second) ++most;
  }
  const int least = LeastRanks(job);
  if (most >= static_cast<std::size_t>(least)) return absl::OkStatus();
  if (refusing) return config::CheckFp8On(job.fp8, *refusing);
  return InvalidField(nccl ? TooFewForNccl(least, most) : TooFew(job.parallelism, least, most));
}

}  // namespace takt::cli
