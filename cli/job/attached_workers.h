// SPDX-License-Identifier: Apache-2.0
// Says what a plan may assume of the coordinator's workers.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "common/config/job_spec.h"
#include "common/plan/offers.h"
#include "common/profile/profile.h"

namespace takt::cli {

// Returns what the workers offer that are attached and take work, busy ones too.
std::vector<plan::WorkerOffer> OffersOf(const std::vector<v1::Worker>& workers);

// Returns what a plan of the job may assume of the workers that are attached and take work, busy
// ones too. A job on GPUs counts with those whose GPU multiplies in its precision. Errors:
// kFailedPrecondition (there is none), kInvalidArgument (no GPU multiplies in its precision).
absl::StatusOr<plan::PlanOptions> OptionsForWorkers(const config::JobSpec& job,
                                                    const std::vector<v1::Worker>& workers);

// Returns what the coordinator knows from measurements. Null: it is older than profiles.
absl::StatusOr<std::shared_ptr<const profile::Profile>> ReadProfile(Client& client);

}  // namespace takt::cli
