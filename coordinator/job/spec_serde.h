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

// Returns the spec with the data and the microbatch of `job`, which is the same job after a plan
// chose them. All else stays as it was submitted.
std::string WithBitsOf(const std::string& spec, const config::JobSpec& job);

// The reverse.
std::string FormatSpec(const config::JobSpec& job);

}  // namespace takt::job
