// SPDX-License-Identifier: Apache-2.0
// Reads the section `logging` of a job.
#pragma once

#include "common/config/job_spec.h"
#include "common/config/spec_rules.h"

namespace takt::v1 {
class LoggingSpec;
}  // namespace takt::v1

namespace takt::config {

void ReadLogging(const v1::LoggingSpec& proto, JobSpec& job, SpecRules& rules);

}  // namespace takt::config
