// SPDX-License-Identifier: Apache-2.0
// Decides whether a job may resume from the checkpoint of a job whose file said something else.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/config/job_spec.h"

namespace takt::config {

// Compares the job with the spec of the job that was saved, as FormatJobFile wrote it (`saved`).
// These fields may differ, because they say how long and where a job runs and what it writes
// besides checkpoints: `name`, `steps`, `parallelism`, `checkpoint`, `logging`, `exact`,
// `priority`, `replan`, `elastic`, `data.validation`, `optimizer.barrier`. `model.init_from` and
// `model.hf_config` may differ too, because the weights are in the checkpoint; the fields that such
// a file gave the model are compared themselves. A schedule of learning rates that ends with the
// job, by `decay_steps` or wsd's `stable_steps`, may end with the new one: it follows `steps`.
// Errors: kInvalidArgument with one FieldError for each other field that differs.
absl::Status CheckResumes(const JobSpec& job, std::string_view saved);

}  // namespace takt::config
