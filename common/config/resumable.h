// SPDX-License-Identifier: Apache-2.0
// Whether a job may go on from the checkpoint of a job file that read otherwise.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/config/job_spec.h"

namespace takt::config {

// saved: the job's spec when it was saved, as FormatJobFile wrote it. What says how long and where
// a job runs, and what it writes beside checkpoints, may differ: `name`, `steps`, `parallelism`,
// `checkpoint`, `logging`, `data.validation`. init_from does not matter: the weights are there.
// Errors: kInvalidArgument: one FieldError for each other field that differs.
absl::Status CheckResumes(const JobSpec& job, std::string_view saved);

}  // namespace takt::config
