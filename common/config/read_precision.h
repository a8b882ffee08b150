// SPDX-License-Identifier: Apache-2.0
// Reads the fields `precision`, `fp8` and `residual` of a job, for job_spec_serde.h.
#pragma once

#include "common/config/job_spec.h"

namespace takt::v1 {
class JobSpec;
}  // namespace takt::v1

namespace takt::config {

class SpecRules;

// Precondition: `job` has its model, its parallelism and `exact`, on which the fields depend.
void ReadPrecision(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules);

}  // namespace takt::config
