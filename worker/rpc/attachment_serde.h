// SPDX-License-Identifier: Apache-2.0
// The session's structs to and from takt.v1.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "takt/v1/assignment.pb.h"
#include "takt/v1/attachment_service.pb.h"
#include "worker/session/bulk_outbox.h"
#include "worker/session/committer.h"
#include "worker/session/rank_runner.h"

namespace takt::rpc {

// kInvalidArgument: a job spec, program or partition that cannot be one, or that disagree with each
// other.
absl::StatusOr<session::Assignment> ToAssignment(const v1::Assignment& proto);

session::CommitRequest ToCommitRequest(const v1::CommitCheckpoint& proto);

v1::CheckpointCommitted ToProto(const session::CommitAnswer& answer);
v1::JobUpdate ToProto(const session::JobUpdate& update, const std::string& worker);
v1::RankStatus ToProto(const session::RankStatus& status, Rank rank, const std::string& worker);
v1::StreamBulkRequest ToProto(const session::BulkOutbox::Item& item, const std::string& worker);

}  // namespace takt::rpc
