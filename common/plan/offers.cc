// SPDX-License-Identifier: Apache-2.0
#include "common/plan/offers.h"

#include <algorithm>
#include <map>

namespace takt::plan {
namespace {

using config::DeviceKind;

// Returns the smaller of the numbers that are not 0, or 0 if both are.
template <class Number>
Number LeastKnown(Number a, Number b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

// Names the host or the GPU whose memory the worker uses. Workers with the same owner share it.
const std::string& MemoryOwner(const WorkerOffer& offer, DeviceKind device) {
  return device == DeviceKind::kCuda ? offer.device->uuid : offer.host;
}

}  // namespace

DeviceKind DeviceOf(const config::JobSpec& job, DeviceKind before, bool any_gpu) {
  const config::Parallelism& p = job.parallelism;
  if (p.device != DeviceKind::kAuto) return p.device;
  if (job.model.family == model::Family::kEmulated) return DeviceKind::kCpu;
  if (p.transport == config::TransportKind::kNccl) return DeviceKind::kCuda;
  if (before != DeviceKind::kAuto) return before;
  return any_gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
}

double FlopsPerSecond(const config::JobSpec& job, const WorkerOffer& offer, DeviceKind device) {
  MatmulRates rates;
  if (device != DeviceKind::kCuda) {
    rates = offer.matmul_rates;
  } else if (offer.device) {
    rates = offer.device->matmul_rates;
  }
  const bool bf16 = config::PrecisionsOf(job, device).products == model::Precision::kBf16;
  return bf16 && rates.bf16 > 0 ? rates.bf16 : rates.f32;
}

PlanOptions PlanOptionsFor(const config::JobSpec& job, const std::vector<WorkerOffer>& offers,
                           DeviceKind device) {
  PlanOptions options{.max_workers = static_cast<int>(offers.size()), .device = device};
  std::map<std::string, int> sharing;
  for (const WorkerOffer& offer : offers) ++sharing[MemoryOwner(offer, device)];
  double slowest = 0;
  for (const WorkerOffer& offer : offers) {
    slowest = LeastKnown(slowest, FlopsPerSecond(job, offer, device));
    const std::int64_t bytes =
        device == DeviceKind::kCuda ? offer.device->memory_bytes : offer.memory_bytes;
    options.worker_memory_bytes =
        LeastKnown(options.worker_memory_bytes, bytes / sharing[MemoryOwner(offer, device)]);
  }
  if (slowest > 0) options.matmul_flops_per_second = slowest;
  return options;
}

}  // namespace takt::plan
