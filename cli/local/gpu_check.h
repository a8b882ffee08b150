// SPDX-License-Identifier: Apache-2.0
// Finds jobs that would wait for ever for GPUs of a cluster that does not grow.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/config/job_spec.h"
#include "takt/v1/cluster_service.pb.h"

namespace takt::cli {

// Returns the number of ranks that the job begins with.
int LeastRanks(const config::JobSpec& job);

// Checks that enough of these workers can hold a rank of the job, where it computes on GPUs.
// workers: all that are attached. Errors: kInvalidArgument (FieldError of the field by which the
// job needs other GPUs, or more of them).
absl::Status CheckGpus(const config::JobSpec& job, const std::vector<v1::Worker>& workers);

}  // namespace takt::cli
