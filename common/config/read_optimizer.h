// SPDX-License-Identifier: Apache-2.0
// Reads the optimizer and its learning rates, for job_spec_serde.h.
#pragma once

#include "common/config/job_spec.h"

namespace takt {
class FieldRules;
namespace v1 {
class OptimizerSpec;
}
}  // namespace takt

namespace takt::config {

// Reads `proto` into `job`, whose model and steps were read before, and checks it.
void ReadOptimizer(const v1::OptimizerSpec& proto, JobSpec& job, FieldRules& rules);

}  // namespace takt::config
