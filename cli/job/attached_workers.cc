// SPDX-License-Identifier: Apache-2.0
#include "cli/job/attached_workers.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/device_serde.h"
#include "common/base/status.h"
#include "common/config/fp8_devices.h"

namespace takt::cli {
namespace {

bool IsAttached(const v1::Worker& worker) {
  return worker.state() != v1::WORKER_STATE_LOST && worker.state() != v1::WORKER_STATE_AWAY;
}

plan::WorkerOffer OfferOf(const v1::Worker& worker) {
  plan::WorkerOffer offer{.host = worker.host(),
                          .processor = worker.processor(),
                          .cores = worker.cores(),
                          .threads = worker.threads(),
                          .memory_bytes = worker.memory_bytes(),
                          .matmul_rates = {.f32 = worker.matmul_flops_per_second(),
                                           .bf16 = worker.bf16_matmul_flops_per_second(),
                                           .fp8 = worker.fp8_matmul_flops_per_second()}};
  if (worker.has_device()) offer.device = takt::FromProto(worker.device());
  return offer;
}

// Workers that take no work share the cores of their hosts too, as the coordinator divides them.
plan::Host HostOf(const std::vector<v1::Worker>& workers,
                  const std::vector<plan::WorkerOffer>& offers, config::DeviceKind device) {
  std::set<std::string> hosts;
  for (const plan::WorkerOffer& offer : offers) hosts.insert(offer.host);
  std::vector<plan::WorkerOffer> attached;
  for (const v1::Worker& worker : workers) {
    if (IsAttached(worker) && hosts.contains(worker.host())) attached.push_back(OfferOf(worker));
  }
  return plan::HostOf(attached, device);
}

}  // namespace

std::vector<plan::WorkerOffer> OffersOf(const std::vector<v1::Worker>& workers) {
  std::vector<plan::WorkerOffer> offers;
  for (const v1::Worker& worker : workers) {
    const bool retired = worker.drained() || worker.leaving() || worker.quarantined();
    if (IsAttached(worker) && !retired) offers.push_back(OfferOf(worker));
  }
  return offers;
}

absl::StatusOr<plan::PlanOptions> OptionsForWorkers(const config::JobSpec& job,
                                                    const std::vector<v1::Worker>& workers) {
  using config::DeviceKind;
  std::vector<plan::WorkerOffer> offers = OffersOf(workers);
  const bool any_gpu = std::ranges::any_of(
      offers, [](const plan::WorkerOffer& offer) { return offer.device.has_value(); });
  const DeviceKind device = plan::DeviceOf(job, DeviceKind::kAuto, any_gpu);
  if (device == DeviceKind::kCuda) {
    std::erase_if(offers, [](const plan::WorkerOffer& offer) { return !offer.device; });
    const absl::Status refused =
        any_gpu ? config::CheckFp8On(job.fp8, *offers.front().device) : absl::OkStatus();
    std::erase_if(offers, [&](const plan::WorkerOffer& offer) {
      return config::MostFp8On(*offer.device) < job.fp8;
    });
    if (offers.empty()) RETURN_IF_ERROR(refused);
  }
  if (offers.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no worker ", device == DeviceKind::kCuda ? "with a GPU " : "",
        "is attached that takes work; start one, or plan without them: takt plan --workers N"));
  }
  plan::PlanOptions options = plan::PlanOptionsFor(job, offers, device);
  options.host = HostOf(workers, offers, device);
  return options;
}

absl::StatusOr<std::shared_ptr<const profile::Profile>> ReadProfile(Client& client) {
  absl::StatusOr<profile::Profile> profile = client.GetProfile();
  // Whoever may list workers may read the profile. Only a coordinator that does not know the
  // request refuses it.
  const absl::Status& status = profile.status();
  if (absl::IsUnimplemented(status) || absl::IsPermissionDenied(status)) return nullptr;
  RETURN_IF_ERROR(status);
  return std::make_shared<const profile::Profile>(*std::move(profile));
}

}  // namespace takt::cli
