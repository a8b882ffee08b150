// SPDX-License-Identifier: Apache-2.0
// What every connection between a client and the coordinator has in common. For rpc/ folders and
// cli/ (target takt_rpc_status).
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace takt {

// A peer that hangs, or whose host is gone without a word, answers no pings: the connection and its
// streams, which have no deadline, end with UNAVAILABLE after the two together.
inline constexpr int kKeepaliveMillis = 10'000;
inline constexpr int kKeepaliveTimeoutMillis = 10'000;

// Of a client's channel. Callers add what is theirs.
grpc::ChannelArguments ClientArguments();

// Lets clients ping as often as ClientArguments makes them.
void AllowKeepalive(grpc::ServerBuilder& builder);

}  // namespace takt
