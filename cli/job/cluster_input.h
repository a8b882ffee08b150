// SPDX-License-Identifier: Apache-2.0
// Reads the description of a cluster that a plan is made for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::cli {

// Returns what a plan of the job may assume of the workers that the file describes; "-" is stdin.
// Errors: kInvalidArgument (FieldError): the file cannot be read or is wrong. kFailedPrecondition:
// it has no worker for the job.
absl::StatusOr<plan::PlanOptions> OptionsForClusterFile(const std::string& path,
                                                        const config::JobSpec& job);

}  // namespace takt::cli
