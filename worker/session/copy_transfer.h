// SPDX-License-Identifier: Apache-2.0
// Sends the state of a layer from one rank's memory to another's, over a channel of the data plane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Both ends open channels for copies for messages of at most so many bytes.
inline constexpr std::size_t kCopyMessageBytes = std::size_t{1} << 20;

// Which state is sent.
struct CopiedState {
  std::int64_t generation = 0;
  StepId step;
  LayerId layer;
};

// Sends the hash (checkpoint::HashOf) and the values. Blocks and errors: as SendChannel::Send.
absl::Status SendLayer(transport::SendChannel& channel, const CopiedState& state,
                       std::span<const float> values, const std::string& hash);

// Receives into `values`, which has as many floats as were sent. Blocks: until all has come.
// Errors: kDataLoss if the values do not have the hash that was sent: the channel can be used on.
// Others: as RecvChannel::Recv.
absl::Status RecvLayer(transport::RecvChannel& channel, const CopiedState& state,
                       std::span<float> values);

}  // namespace takt::session
