// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "common/control/reports.h"
#include "takt/v1/attachment_service.pb.h"

namespace takt::control {

v1::CheckpointFile ToProto(const checkpoint::FileEntry& file);
checkpoint::FileEntry FromProto(const v1::CheckpointFile& proto);

// The message does not name the job. A level that this program does not know is read as info.
v1::LogLine ToProto(const LogLine& line);
LogLine FromProto(const v1::LogLine& proto);

v1::StreamBulkRequest ToProto(const BulkMessage& message);
// Returns nullopt if this program does not know the message.
std::optional<BulkMessage> FromProto(const v1::StreamBulkRequest& proto);

v1::StreamBulkResponse ToProto(const ReportsAcknowledged& acknowledged);
ReportsAcknowledged FromProto(const v1::StreamBulkResponse& proto);

}  // namespace takt::control
