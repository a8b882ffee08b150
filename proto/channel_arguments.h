// SPDX-License-Identifier: Apache-2.0
// Sets what every connection between a client and the coordinator has in common. It is for rpc/
// folders and cli/ (target takt_rpc_status).
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace takt {

// A peer that hangs, or whose host has vanished, answers no pings. After the sum of these two times
// its connection ends with UNAVAILABLE, and so do its streams, which have no deadline.
inline constexpr int kKeepaliveMillis = 10'000;
inline constexpr int kKeepaliveTimeoutMillis = 10'000;

// Returns the arguments of a client's channel. Callers add their own.
grpc::ChannelArguments ClientArguments();

// Lets clients ping as often as ClientArguments makes them.
void AllowKeepalive(grpc::ServerBuilder& builder);

}  // namespace takt
