// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/worker_kinds.h"

#include <algorithm>

namespace takt::placement {

bool Serves(const WorkerKind& kind, const Need& need) {
  if (kProtocolVersion - kind.older < need.protocol) return false;
  if (need.device != config::DeviceKind::kCuda) return true;
  return kind.has_gpu && kind.fp8 >= need.fp8 && (!need.nccl || kind.has_nccl);
}

WorkerKinds::WorkerKinds(const std::vector<GangWorker>& workers) {
  std::set<std::string> gpus;
  for (const GangWorker& worker : workers) {
    if (worker.has_gpu && !gpus.insert(worker.gpu).second) shared_gpus_.insert(worker.gpu);
  }
  std::set<WorkerKind> kinds;
  for (const GangWorker& worker : workers) kinds.insert(KindOf(worker));
  kinds_.assign(kinds.begin(), kinds.end());
}

std::size_t WorkerKinds::IndexOf(const GangWorker& worker) const {
  if (kinds_.size() == 1) return 0;
  return std::ranges::lower_bound(kinds_, KindOf(worker)) - kinds_.begin();
}

WorkerKind WorkerKinds::KindOf(const GangWorker& worker) const {
  const bool shares = worker.has_gpu && shared_gpus_.contains(worker.gpu);
  return {.has_gpu = worker.has_gpu,
          .fp8 = worker.fp8,
          .has_nccl = worker.has_nccl,
          .shares_gpu = shares,
          .gpu = shares ? worker.gpu : "",
          .older = kProtocolVersion - worker.protocol};
}

}  // namespace takt::placement
