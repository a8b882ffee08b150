// SPDX-License-Identifier: Apache-2.0
// takt.v1.JobSpec, as it travels and is stored, to and from the validated config::JobSpec.
#pragma once

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::v1 {
class JobSpec;
class ModelSpec;
}  // namespace takt::v1

namespace takt::config {

// Applies defaults and judges every field. What needs a mesh or a schedule (pipeline: auto,
// schedule names) is judged by the planner, what needs the data files by the worker. Precondition
// for a spec that names hf_config, init_from or a schedule file: FillFromFiles (spec_files.h) has
// completed it. Errors: kInvalidArgument with one FieldError for each rule broken.
absl::StatusOr<JobSpec> ToJobSpec(const v1::JobSpec& proto);

// A spec that ToJobSpec reads back to the same job.
v1::JobSpec ToProto(const JobSpec& job);

// The shape part of `proto`; where weights come from is left alone.
void WriteModel(const model::ModelConfig& model, v1::ModelSpec& proto);

}  // namespace takt::config
