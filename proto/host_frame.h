// SPDX-License-Identifier: Apache-2.0
// Frames in which a host's relay and the coordinator carry the streams of the host's workers
// (takt.v1.AttachmentService.AttachHost). They are for rpc/ folders (target takt_rpc_status).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "takt/v1/attachment_service.pb.h"

namespace takt {

// The most workers' streams of each kind on a connection, so that a relay cannot fill the
// coordinator's memory.
inline constexpr std::size_t kMaxHostStreams = 1024;

// Each returns a frame with one part: a message of a worker's stream, or the end of the stream.
v1::HostFrame FrameOf(std::int64_t stream, std::string message);
v1::HostFrame EndFrame(std::int64_t stream, const absl::Status& status);

// Returns the status with which a worker's stream ended, with its field errors.
absl::Status StatusOf(const v1::StreamEnd& end);

// Moves the parts of `next` to the end of `last`, if all of them are small and `last` has room.
// Returns whether it did. A large message, as a program is, always travels alone or first.
bool JoinFrames(v1::HostFrame& last, v1::HostFrame& next);

}  // namespace takt
