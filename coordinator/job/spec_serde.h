// SPDX-License-Identifier: Apache-2.0
// Reads and validates job specs in the form in which they are sent and stored.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::job {

// spec: takt.v1.JobSpec, serialized. Errors: kInvalidArgument (FieldError) with the fields that are
// wrong.
absl::StatusOr<config::JobSpec> ParseSpec(const std::string& spec);

}  // namespace takt::job
