// SPDX-License-Identifier: Apache-2.0
// The rules of `parallelism.data_leaves`.
#pragma once

#include "common/base/field_rules.h"
#include "common/config/job_spec.h"

namespace takt::config {

// Checks the field against those on which it depends. Precondition: all of `job` was read.
void CheckDataLeaves(const JobSpec& job, FieldRules& rules);

}  // namespace takt::config
