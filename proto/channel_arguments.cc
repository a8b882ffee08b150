// SPDX-License-Identifier: Apache-2.0
#include "proto/channel_arguments.h"

#include "proto/rpc_status.h"

namespace takt {

grpc::ChannelArguments ClientArguments(int keepalive_millis) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the coordinator is never behind one
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // Callers have a backoff of their own. gRPC's must not add minutes to it.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_millis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_millis);
  // A client that only listens on a stream sends no data between its pings.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

void AllowKeepalive(grpc::ServerBuilder& builder, int keepalive_millis) {
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             keepalive_millis / 2);
}

}  // namespace takt
