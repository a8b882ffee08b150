// SPDX-License-Identifier: Apache-2.0
// The workers of a cluster and their links, so that jobs can be planned for it without its
// coordinator.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/offers.h"
#include "common/profile/profile.h"

namespace takt::cluster {

// Says what a message costs between two workers.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 1;  // after the latency

  bool operator==(const Link&) const = default;
};

struct Cluster {
  std::vector<plan::WorkerOffer> offers;
  // Nullopt: what the profile says, else the usual cost of a message (plan::PlanOptions).
  std::optional<Link> same_host, between_hosts;
  std::shared_ptr<const profile::Profile> profile;  // null: nothing was measured
};

// Returns what a plan of the job for this cluster may assume. A plan has one link: that of one host
// if all ranks of the job fit on the host with most workers, else the one between hosts. A job that
// leaves its pipeline open counts with as many stages as it can have. A job on GPUs counts with the
// workers that have one which multiplies in its precision. Errors: kFailedPrecondition (the job
// computes on GPUs, and there is none), kInvalidArgument (none multiplies in its precision).
absl::StatusOr<plan::PlanOptions> PlanOptionsFor(const config::JobSpec& job,
                                                 const Cluster& cluster);

}  // namespace takt::cluster
