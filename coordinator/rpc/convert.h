// SPDX-License-Identifier: Apache-2.0
// Turns what the coordinator shows of workers, held jobs and steps into messages.
#pragma once

#include "coordinator/job/held_jobs.h"
#include "coordinator/job/step_split.h"
#include "coordinator/membership/membership.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job.pb.h"
#include "takt/v1/job_service.pb.h"

namespace takt::coordinator_rpc {

v1::Worker ToProto(const membership::Worker& worker);
v1::HeldJob ToProto(const job::HeldJobView& held);
v1::StepSplit ToProto(const job::StepSplit& split);

}  // namespace takt::coordinator_rpc
