// SPDX-License-Identifier: Apache-2.0
// Says which workers' programs are too old for a job.
#pragma once

#include "absl/status/status.h"
#include "common/base/version.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::plan {

// From this version on a worker can foresee weights even if it updates only its shard of them.
inline constexpr int kForeseenShardsProtocolVersion = kResidualProtocolVersion;

// Returns whether ranks that share the optimizer's state of this job need
// kPackedShardsProtocolVersion.
bool PacksShards(const config::JobSpec& job);

// Returns the version of the protocol that a worker must speak at least to train the job on this
// kind of device, whatever a plan chooses.
int NeededProtocol(const config::JobSpec& job, config::DeviceKind device);

// Errors: kInvalidArgument (FieldError): the job has a field that the program of a worker does not
// know.
absl::Status CheckPrograms(const config::JobSpec& job, const PlanOptions& options);

}  // namespace takt::plan
