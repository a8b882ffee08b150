// SPDX-License-Identifier: Apache-2.0
// Job specs as they travel and are kept, read and judged.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::job {

// spec: takt.v1.JobSpec, serialized. kInvalidArgument with the fields that are wrong.
absl::StatusOr<config::JobSpec> ParseSpec(const std::string& spec);

}  // namespace takt::job
