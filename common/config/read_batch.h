// SPDX-License-Identifier: Apache-2.0
// Reads how many sequences a step and a microbatch have, for job_spec_serde.h.
#pragma once

#include "common/config/job_spec.h"

namespace takt {
class FieldRules;
namespace v1 {
class JobSpec;
}
}  // namespace takt

namespace takt::config {

// A step has at most so many microbatches, because programs have an instruction for each.
inline constexpr int kMaxMicrobatches = 1 << 16;

// Reads proto.batch() into `job`, whose model was read before, and checks it. The rules concern the
// replicas and the schedule too, which are read from `proto`.
void ReadBatch(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules);

}  // namespace takt::config
