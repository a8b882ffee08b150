// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/placement.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>

#include "common/base/version.h"
#include "common/config/fp8_devices.h"
#include "common/plan/worker_programs.h"

namespace takt::placement {
namespace {

using config::DeviceKind;
using membership::WorkerState;

plan::WorkerOffer OfferOf(const Worker& worker) {
  const control::Hello& hello = worker.hello;
  return {.host = hello.host,
          .processor = hello.processor,
          .cores = hello.cores,
          .threads = hello.threads,
          .memory_bytes = hello.memory_bytes,
          .matmul_rates = hello.matmul_rates,
          .device = hello.device};
}

GangWorker GangWorkerOf(const Worker& worker) {
  const control::Hello& hello = worker.hello;
  return {.name = hello.worker,
          .has_gpu = hello.device.has_value(),
          .has_nccl = hello.has_nccl,
          .gpu = hello.device ? hello.device->uuid : "",
          .host = hello.host,
          .protocol = hello.protocol_version,
          .fp8 = hello.device ? config::MostFp8On(*hello.device) : model::Fp8Recipe::kNone};
}

// Counts a held worker as one of those that its generation holds. places: where each generation
// stands in `held`.
void AddHeld(const Worker& worker, std::map<control::JobKey, std::size_t>& places,
             std::vector<Holder>& held) {
  const control::JobKey& key = worker.hold->key;
  const auto [place, is_new] = places.try_emplace(key, held.size());
  if (is_new) held.push_back({.name = key.job, .generation = key.generation});
  Holder& holder = held[place->second];
  if (worker.retired() || worker.away) {
    ++holder.num_others;
  } else {
    holder.workers.push_back(GangWorkerOf(worker));
  }
}

}  // namespace

DeviceKind DeviceOf(const config::JobSpec& spec, DeviceKind before, const Workers& workers) {
  const bool any_gpu = std::ranges::any_of(workers, [](const auto& entry) {
    return entry.second.attached() && entry.second.hello.device.has_value();
  });
  return plan::DeviceOf(spec, before, any_gpu);
}

Need NeedOf(const config::JobSpec& spec, DeviceKind device) {
  const bool open = spec.LeavesSizeOpen();
  const int ranks = spec.parallelism.RanksPerReplica();
  return {.workers = spec.LeastPipeline() * spec.LeastData() * ranks,
          .up_to_all = open,
          .most = open ? spec.MostWorkers() : std::nullopt,
          .group = spec.parallelism.tensor,
          .device = device,
          .nccl = spec.parallelism.transport == config::TransportKind::kNccl,
          .cuda_ipc = spec.parallelism.transport == config::TransportKind::kCudaIpc,
          .fp8 = spec.fp8,
          .protocol = plan::NeededProtocol(spec, device)};
}

Capacity CapacityOf(const Workers& workers) {
  Capacity capacity;
  Gang idle;
  std::map<control::JobKey, std::size_t> places;
  for (const auto& [name, worker] : workers) {
    if (worker.hold) {
      AddHeld(worker, places, capacity.held);
    } else if (worker.TakesWork()) {
      idle.push_back(&worker);
    } else if (worker.state() == WorkerState::kIdle) {
      int& others = worker.drained   ? capacity.drained
                    : worker.leaving ? capacity.leaving
                                     : capacity.quarantined;
      ++others;
    }
  }
  SortByRank(idle, DeviceKind::kAuto);
  for (const Worker* worker : idle) capacity.idle.push_back(GangWorkerOf(*worker));
  return capacity;
}

int OldestProtocol(const Gang& gang) {
  int oldest = kProtocolVersion;
  for (const Worker* worker : gang) oldest = std::min(oldest, worker->hello.protocol_version);
  return oldest;
}

void SortByRank(Gang& gang, DeviceKind device) {
  std::ranges::sort(gang, {}, [&](const Worker* worker) {
    // A job on cores takes workers without a GPU first.
    const bool later = device == DeviceKind::kCpu && worker->hello.device.has_value();
    return std::tuple<bool, const std::string&, const std::string&>(later, worker->hello.host,
                                                                    worker->hello.worker);
  });
}

plan::PlanOptions PlanOptionsFor(const config::JobSpec& spec, const Gang& gang, DeviceKind device,
                                 const Workers& workers) {
  std::vector<plan::WorkerOffer> offers, attached;
  std::map<std::string, int> hosts;  // to how many of the gang are there
  int most = 0;
  for (const Worker* worker : gang) {
    offers.push_back(OfferOf(*worker));
    most = std::max(most, ++hosts[worker->hello.host]);
  }
  for (const auto& [name, worker] : workers) {
    if (worker.attached() && hosts.contains(worker.hello.host)) attached.push_back(OfferOf(worker));
  }
  plan::PlanOptions options = plan::PlanOptionsFor(spec, offers, device);
  options.host = plan::HostOf(attached, device);
  options.host.free = most;
  options.oldest_protocol = OldestProtocol(gang);
  return options;
}

plan::PlanOptions PlanOptionsFor(const config::JobSpec& spec, const Workers& workers) {
  const config::Parallelism& p = spec.parallelism;
  const DeviceKind device = DeviceOf(spec, DeviceKind::kAuto, workers);
  const int protocol = plan::NeededProtocol(spec, device);
  Gang gang;
  for (const auto& [name, worker] : workers) {
    const std::optional<Device>& gpu = worker.hello.device;
    const bool computes =
        device != DeviceKind::kCuda || (gpu && config::MostFp8On(*gpu) >= spec.fp8);
    const bool fits = computes && worker.hello.protocol_version >= protocol;
    if (worker.attached() && fits) gang.push_back(&worker);
  }
  plan::PlanOptions options = PlanOptionsFor(spec, gang, device, workers);
  options.max_workers = *p.pipeline * p.data.value_or(1) * p.RanksPerReplica();
  options.worker_memory_bytes = 0;
  return options;
}

std::vector<profile::RankPlace> PlacesOf(const Gang& ranks, const std::vector<int>& threads,
                                         DeviceKind device) {
  const bool gpu = device == DeviceKind::kCuda;
  std::map<std::string, int> ranks_of;  // by host
  for (const Worker* worker : ranks) ++ranks_of[worker->hello.host];
  std::vector<profile::RankPlace> places;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& host = ranks[rank]->hello.host;
    places.push_back({.conditions = {.machine = plan::MachineOf(OfferOf(*ranks[rank]), device),
                                     .threads = gpu ? 0 : threads[rank],
                                     .ranks_per_host = gpu ? 1 : ranks_of[host]},
                      .host = host});
  }
  return places;
}

std::vector<int> ThreadsOf(const config::JobSpec& spec, const Gang& ranks, const Workers& workers) {
  if (spec.parallelism.threads) return std::vector<int>(ranks.size(), *spec.parallelism.threads);
  std::map<std::string, int> attached;  // by host
  for (const auto& [name, worker] : workers) attached[worker.hello.host] += worker.attached();
  std::vector<int> threads;
  for (const Worker* worker : ranks) {
    threads.push_back(plan::ThreadsOf(OfferOf(*worker), attached[worker->hello.host]));
  }
  return threads;
}

double FlopsPerSecond(const config::JobSpec& spec, const Worker& worker, DeviceKind device) {
  return plan::FlopsPerSecond(spec, OfferOf(worker), device);
}

}  // namespace takt::placement
