// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/spec_serde.h"

#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::job {

absl::StatusOr<config::JobSpec> ParseSpec(const std::string& spec) {
  v1::JobSpec proto;
  if (!proto.ParseFromString(spec)) {
    return InvalidField({.field = "spec",
                         .rule = "must be a takt.v1.JobSpec",
                         .fix = "submit it with a client of this version"});
  }
  return config::ToJobSpec(proto);
}

}  // namespace takt::job
