// SPDX-License-Identifier: Apache-2.0
// Reads the field `evaluate` of a job, and checks how many steps a job may have with it or without.
#pragma once

#include "common/config/job_spec.h"
#include "common/config/spec_rules.h"

namespace takt::v1 {
class JobSpec;
}  // namespace takt::v1

namespace takt::config {

// Precondition: `job` has its model and its data, on which the field depends.
void ReadEvaluation(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules);

}  // namespace takt::config
