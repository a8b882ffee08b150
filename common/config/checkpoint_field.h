// SPDX-License-Identifier: Apache-2.0
// Reads the section `checkpoint` of a job.
#pragma once

#include "common/config/job_spec.h"
#include "common/config/spec_rules.h"

namespace takt::v1 {
class CheckpointSpec;
}  // namespace takt::v1

namespace takt::config {

void ReadCheckpoint(const v1::CheckpointSpec& proto, JobSpec& job, SpecRules& rules);

}  // namespace takt::config
