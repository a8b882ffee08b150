// SPDX-License-Identifier: Apache-2.0
// Sets what every connection between a client and the coordinator has in common. It is for rpc/
// folders and cli/ (target takt_rpc_status).
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace takt {

// A peer that hangs, or whose host has vanished, answers no pings. After twice this time its
// connection ends with UNAVAILABLE, and so do its streams, which have no deadline.
inline constexpr int kKeepaliveMillis = 10'000;

// The same between a worker and the relay of its host, which answer sooner. A worker that finds the
// relay hanging has dialled the coordinator before its lease ends.
inline constexpr int kRelayKeepaliveMillis = 2'000;

// Returns the arguments of a client's channel. Callers add their own. keepalive_millis: how long
// the client waits for any data before it sends a ping, and then for the answer.
grpc::ChannelArguments ClientArguments(int keepalive_millis = kKeepaliveMillis);

// Lets clients ping as often as ClientArguments makes them.
void AllowKeepalive(grpc::ServerBuilder& builder, int keepalive_millis = kKeepaliveMillis);

}  // namespace takt
