// SPDX-License-Identifier: Apache-2.0
#include "common/plan/offers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "common/base/bounded_text.h"

namespace takt::plan {
namespace {

using config::DeviceKind;

// A name that a worker tells becomes part of what is stored.
constexpr std::size_t kMostNameBytes = 100;

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
  using enum config::TransportKind;
  if (p.transport == kNccl || p.transport == kCudaIpc) return DeviceKind::kCuda;
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
  if (job.fp8 != model::Fp8Recipe::kNone && rates.fp8 > 0) return rates.fp8;
  const bool bf16 = config::PrecisionsOf(job, device).products == model::Precision::kBf16;
  return bf16 && rates.bf16 > 0 ? rates.bf16 : rates.f32;
}

std::string MachineOf(const WorkerOffer& offer, DeviceKind device) {
  const auto bounded = [](const std::string& name) {
    return std::string(FirstBytes(name, kMostNameBytes));
  };
  if (device != DeviceKind::kCuda) return bounded(offer.processor);
  return offer.device ? bounded(offer.device->name) : "";
}

int ThreadsOf(const WorkerOffer& offer, int workers) {
  const int share = std::max(1, offer.cores / std::max(1, workers));
  return std::min(offer.threads > 0 ? offer.threads : share, config::kMaxThreads);
}

Host HostOf(const std::vector<WorkerOffer>& attached, DeviceKind device) {
  std::map<std::string, int> workers_of;  // by host
  for (const WorkerOffer& offer : attached) ++workers_of[offer.host];
  struct Shared {
    Host host;
    double cores = 0;  // of a worker
  };
  std::map<std::string, Shared> hosts;  // by name
  for (const WorkerOffer& offer : attached) {
    const int workers = workers_of[offer.host];
    const int threads = device == DeviceKind::kCuda ? 1 : ThreadsOf(offer, workers);
    const double cores = 1.0 * std::max(1, offer.cores) / workers;
    const Shared first = {.host = {.threads = threads, .workers = workers}, .cores = cores};
    Shared& shared = hosts.try_emplace(offer.host, first).first->second;
    shared.host.threads = std::min(shared.host.threads, threads);
    shared.cores = std::min(shared.cores, cores);
    if (shared.host.machine.empty()) shared.host.machine = MachineOf(offer, device);
  }
  const auto fullest = std::ranges::min_element(hosts, {}, [](const auto& entry) {
    return std::pair(entry.second.host.threads, entry.second.cores);
  });
  return fullest == hosts.end() ? Host() : fullest->second.host;
}

PlanOptions PlanOptionsFor(const config::JobSpec& job, const std::vector<WorkerOffer>& offers,
                           DeviceKind device) {
  PlanOptions options{.max_workers = static_cast<int>(offers.size()),
                      .device = device,
                      .host = HostOf(offers, device)};
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
