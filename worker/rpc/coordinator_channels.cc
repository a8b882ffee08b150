// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/coordinator_channels.h"

#include <grpcpp/create_channel.h>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "proto/channel_arguments.h"

namespace takt::worker_rpc {
namespace {

// The limit is high because a Prepare contains a whole program.
constexpr int kMaxMessageBytes = 64 << 20;

std::shared_ptr<grpc::Channel> ChannelTo(const rpc::Endpoint& endpoint) {
  grpc::ChannelArguments arguments = ClientArguments();
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Channels with equal arguments would share a connection, which would outlive the object that
  // closes it, and on which a large message delays all others.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(endpoint.address, rpc::ChannelCredentialsFor(endpoint),
                                   arguments);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorChannels>> CoordinatorChannels::Create(
    const ChannelOptions& options) {
  std::vector<Coordinator> coordinators;
  const std::vector<std::string> addresses = absl::StrSplit(options.coordinator, ',');
  for (const std::string& address : addresses) {
    const rpc::Endpoint endpoint{.flag = "--coordinator",
                                 .address = address,
                                 .tls = options.tls,
                                 .insecure = options.insecure};
    RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
    coordinators.push_back(
        {.address = endpoint.address, .control = ChannelTo(endpoint), .bulk = ChannelTo(endpoint)});
  }
  return std::unique_ptr<CoordinatorChannels>(new CoordinatorChannels(std::move(coordinators)));
}

}  // namespace takt::worker_rpc
