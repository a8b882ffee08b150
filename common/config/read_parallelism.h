// SPDX-License-Identifier: Apache-2.0
// Reads the section `parallelism` of a job, for job_spec_serde.h.
#pragma once

#include "common/config/job_spec.h"

namespace takt::v1 {
class ParallelismSpec;
}  // namespace takt::v1

namespace takt::config {

class SpecRules;

// Precondition: the model of `job` was read before.
void ReadParallelism(const v1::ParallelismSpec& proto, JobSpec& job, SpecRules& rules);

}  // namespace takt::config
