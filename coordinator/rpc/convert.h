// SPDX-License-Identifier: Apache-2.0
// Messages of the wire to and from the coordinator's own values.
#pragma once

#include <optional>

#include "coordinator/job/cluster.h"
#include "coordinator/job/session.h"
#include "coordinator/job/step_split.h"
#include "coordinator/membership/membership.h"
#include "takt/v1/attachment_service.pb.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job.pb.h"

namespace takt::coordinator_rpc {

membership::Hello FromProto(const v1::Hello& hello);

// nullopt: a phase that this program does not know, or none.
std::optional<job::JobUpdate> FromProto(const v1::JobUpdate& update);
// The running job's status; nullopt: it runs none.
std::optional<job::JobUpdate> FromProto(const v1::Heartbeat& heartbeat);
job::RankStepReport FromProto(const v1::RankStepReport& report);
job::CheckpointReport FromProto(const v1::CheckpointReport& report);
job::CheckpointCommitted FromProto(const v1::CheckpointCommitted& answer);

struct Timing {
  absl::Duration heartbeat, lease;
};
v1::AttachResponse ToProto(const job::Command& command, const Timing& timing);

v1::Worker ToProto(const membership::Worker& worker);
v1::StepSplit ToProto(const job::StepSplit& split);

}  // namespace takt::coordinator_rpc
