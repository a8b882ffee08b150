// SPDX-License-Identifier: Apache-2.0
// Reads the field `elastic` of a job.
#pragma once

#include "common/base/field_rules.h"
#include "common/config/job_spec.h"

namespace takt::v1 {
class JobSpec;
}  // namespace takt::v1

namespace takt::config {

// Precondition: `job` has its model, batch, parallelism and checkpoint sections, on which the field
// depends.
void ReadElastic(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules);

}  // namespace takt::config
