// SPDX-License-Identifier: Apache-2.0
// Reads where the curves of a job go, for job_spec_serde.h.
#pragma once

#include "common/base/field_rules.h"
#include "common/config/job_spec.h"

namespace takt::v1 {
class LoggingSpec;
}

namespace takt::config {

// Reads `proto` into `job`, and judges it.
void ReadLogging(const v1::LoggingSpec& proto, JobSpec& job, FieldRules& rules);

}  // namespace takt::config
