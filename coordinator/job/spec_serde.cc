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

std::string FormatSpec(const config::JobSpec& job) {
  return config::ToProto(job).SerializeAsString();
}

std::string WithBitsOf(const std::string& spec, const config::JobSpec& job) {
  v1::JobSpec proto;
  TAKT_CHECK(proto.ParseFromString(spec));  // it was parsed before
  proto.mutable_batch()->set_microbatch(job.microbatch);
  if (job.parallelism.data) proto.mutable_parallelism()->set_data(*job.parallelism.data);
  if (proto.parallelism().has_tensor())
    proto.mutable_parallelism()->set_tensor(job.parallelism.tensor);
  return proto.SerializeAsString();
}

}  // namespace takt::job
