// SPDX-License-Identifier: Apache-2.0
#include "common/cluster/cluster.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/config/fp8_devices.h"

namespace takt::cluster {
namespace {

using config::DeviceKind;

bool HasGpu(const plan::WorkerOffer& offer) { return offer.device.has_value(); }

// Checks that the worker's GPU multiplies in the job's precision, if its capability is known.
// Precondition: it has one.
absl::Status CheckPrecision(const config::JobSpec& job, const plan::WorkerOffer& offer) {
  if (offer.device->compute_capability.empty()) return absl::OkStatus();
  return config::CheckFp8On(job.fp8, *offer.device);
}

// Returns how many ranks the job can have at most on so many workers.
std::int64_t MostRanks(const config::JobSpec& job, std::int64_t num_workers) {
  const std::int64_t layers = std::int64_t{job.model.layers} + 2;  // with embedding and head
  const std::int64_t data = job.parallelism.data.value_or(1);
  if (!job.LeavesSizeOpen()) return *job.MostWorkers();
  if (job.parallelism.data_auto || job.parallelism.tensor_auto || job.elastic.Resizes())
    return std::min<std::int64_t>(num_workers, job.MostWorkers().value_or(num_workers));
  return std::min(layers * data, std::max(num_workers, data));
}

std::int64_t WorkersOfFullestHost(const std::vector<plan::WorkerOffer>& offers) {
  std::unordered_map<std::string_view, std::int64_t> workers;
  std::int64_t most = 0;
  for (const plan::WorkerOffer& offer : offers) most = std::max(most, ++workers[offer.host]);
  return most;
}

}  // namespace

absl::StatusOr<plan::PlanOptions> PlanOptionsFor(const config::JobSpec& job,
                                                 const Cluster& cluster) {
  const bool any_gpu = std::ranges::any_of(cluster.offers, HasGpu);
  const DeviceKind device = plan::DeviceOf(job, DeviceKind::kAuto, any_gpu);
  const auto computes = [&](const plan::WorkerOffer& offer) {
    return HasGpu(offer) && CheckPrecision(job, offer).ok();
  };
  std::vector<plan::WorkerOffer> with_gpu;
  const bool all = device != DeviceKind::kCuda || std::ranges::all_of(cluster.offers, computes);
  if (!all) std::ranges::copy_if(cluster.offers, std::back_inserter(with_gpu), computes);
  const std::vector<plan::WorkerOffer>& offers = all ? cluster.offers : with_gpu;
  if (offers.empty()) {
    if (any_gpu) return CheckPrecision(job, *std::ranges::find_if(cluster.offers, HasGpu));
    return absl::FailedPreconditionError(
        "the job computes on GPUs, and no worker of the cluster has one; with parallelism.device: "
        "cpu it takes their cores");
  }
  plan::PlanOptions options = plan::PlanOptionsFor(job, offers, device);
  options.profile = cluster.profile;
  const bool one_host = MostRanks(job, std::ssize(offers)) <= WorkersOfFullestHost(offers);
  const std::optional<Link>& link = one_host ? cluster.same_host : cluster.between_hosts;
  if (link) {
    options.link_latency_seconds = link->latency_seconds;
    options.link_seconds_per_byte = 1 / link->bytes_per_second;
    options.use_measured_links = false;
  }
  return options;
}

}  // namespace takt::cluster
