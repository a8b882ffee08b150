// SPDX-License-Identifier: Apache-2.0
#include "common/config/replan_field.h"

#include <string>

#include "common/config/file_names.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {

static_assert(static_cast<int>(Replan::kAtCheckpoint) == v1::REPLAN_MODE_AT_CHECKPOINT);

void ReadReplan(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules) {
  const std::string mode = NameOf(proto.replan());
  rules.Check(v1::ReplanMode_IsValid(proto.replan()), {.field = "replan",
                                                       .value = mode,
                                                       .rule = "must be never or at_checkpoint",
                                                       .fix = "use one of them"});
  if (proto.replan() != v1::REPLAN_MODE_AT_CHECKPOINT) return;
  job.replan = Replan::kAtCheckpoint;
  rules.Check(job.checkpoint.has_value(),
              {.field = "replan",
               .value = mode,
               .rule = "needs checkpoint.directory, because the job goes on from a checkpoint",
               .fix = "add checkpoint: {directory: DIR, every_steps: N}, or set replan: never"});
  if (job.checkpoint.has_value() && job.checkpoint->every_steps == 0)
    job.warnings.push_back("replan: has no effect without checkpoint.every_steps");
  if (!job.exact) {
    job.warnings.push_back(
        "replan: has no effect with exact: false, as another plan rounds differently");
  }
}

}  // namespace takt::config
