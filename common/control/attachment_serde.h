// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "common/control/attachment.h"
#include "takt/v1/attachment_service.pb.h"

namespace takt::control {

v1::AttachRequest ToProto(const WorkerMessage& message);
// nullopt: a message, or a phase of JobUpdate, that this program does not know.
std::optional<WorkerMessage> FromProto(const v1::AttachRequest& proto);

// The assignment of a Prepare must be there, without an error. The epoch is not part of a command:
// the streams write and read it.
v1::AttachResponse ToProto(const Command& command);
// nullopt: a command that this program does not know.
std::optional<Command> FromProto(v1::AttachResponse proto);

}  // namespace takt::control
