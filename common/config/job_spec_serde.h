// SPDX-License-Identifier: Apache-2.0
// Reads takt.v1.JobSpec, as it travels and is stored, to the validated config::JobSpec, and writes
// it.
#pragma once

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::v1 {
class JobSpec;
class ModelSpec;
}  // namespace takt::v1

namespace takt::config {

// Applies defaults and checks every field. The planner checks what needs a mesh or a schedule
// (pipeline: auto, schedule names), and the worker checks what needs the data files. Precondition
// for a spec that names hf_config, init_from or a schedule file: FillFromFiles (spec_files.h) has
// completed it. Errors: kInvalidArgument with one FieldError for each rule broken.
absl::StatusOr<JobSpec> ToJobSpec(const v1::JobSpec& proto);

// Returns a spec that ToJobSpec reads back to the same job.
v1::JobSpec ToProto(const JobSpec& job);

// Writes the shape part of `proto`. It leaves alone where weights come from.
void WriteModel(const model::ModelConfig& model, v1::ModelSpec& proto);

}  // namespace takt::config
