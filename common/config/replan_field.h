// SPDX-License-Identifier: Apache-2.0
// Reads the field `replan` of a job.
#pragma once

#include "common/base/field_rules.h"
#include "common/config/job_spec.h"

namespace takt::v1 {
class JobSpec;
}  // namespace takt::v1

namespace takt::config {

// Precondition: `job` has its checkpoint section and `exact`, on which the field depends.
void ReadReplan(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules);

}  // namespace takt::config
