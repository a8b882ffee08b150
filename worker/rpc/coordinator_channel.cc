// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/coordinator_channel.h"

#include <grpcpp/create_channel.h>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "proto/channel_arguments.h"

namespace takt::worker_rpc {
namespace {

// The limit is high because a Prepare contains a whole program.
constexpr int kMaxMessageBytes = 64 << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel(const ChannelOptions& options) {
  const rpc::Endpoint endpoint{.flag = "--coordinator",
                               .address = options.coordinator,
                               .tls = options.tls,
                               .insecure = options.insecure};
  RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
  grpc::ChannelArguments arguments = ClientArguments();
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Channels with equal arguments would share a connection, which would outlive the object that
  // closes it, and on which a large message delays all others.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(endpoint.address, rpc::ChannelCredentialsFor(endpoint),
                                   arguments);
}

}  // namespace takt::worker_rpc
