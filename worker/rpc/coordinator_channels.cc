// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/coordinator_channels.h"

#include <grpcpp/create_channel.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "proto/channel_arguments.h"

namespace takt::worker_rpc {
namespace {

// The limit is high because a Prepare contains a whole program. A relay may get it in one frame
// with some small messages.
constexpr int kMaxMessageBytes = 65 << 20;

std::shared_ptr<grpc::Channel> ChannelTo(const rpc::Endpoint& endpoint, int keepalive_millis) {
  grpc::ChannelArguments arguments = ClientArguments(keepalive_millis);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Channels with equal arguments would share a connection, which would outlive the object that
  // closes it, and on which a large message delays all others.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(endpoint.address, rpc::ChannelCredentialsFor(endpoint),
                                   arguments);
}

}  // namespace

std::string HealthSocketOf(const std::string& relay) {
  return absl::StrCat(absl::StripPrefix(relay, "unix:"), ".health");
}

absl::StatusOr<std::unique_ptr<CoordinatorChannels>> CoordinatorChannels::Create(
    const ChannelOptions& options) {
  std::vector<Coordinator> coordinators;
  const auto add = [&](const rpc::Endpoint& endpoint, int keepalive_millis) {
    coordinators.push_back({.address = endpoint.address,
                            .control = ChannelTo(endpoint, keepalive_millis),
                            .bulk = ChannelTo(endpoint, keepalive_millis)});
  };
  const bool has_relay = !options.relay.empty();
  if (has_relay) {
    const rpc::Endpoint relay{.flag = "--relay", .address = options.relay};
    if (!relay.is_unix()) {
      return InvalidField({.field = "--relay",
                           .value = options.relay,
                           .rule = "is not unix:PATH: a relay serves the workers of its own host",
                           .fix = "e.g. unix:/run/takt-relay/relay.sock"});
    }
    RETURN_IF_ERROR(rpc::CheckEndpoint(relay, absl::Now()));
    add(relay, kRelayKeepaliveMillis);
  }
  const std::vector<std::string> addresses = absl::StrSplit(options.coordinator, ',');
  for (const std::string& address : addresses) {
    const rpc::Endpoint endpoint{.flag = "--coordinator",
                                 .address = address,
                                 .tls = options.tls,
                                 .insecure = options.insecure};
    RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
    add(endpoint, kKeepaliveMillis);
  }
  return std::unique_ptr<CoordinatorChannels>(
      new CoordinatorChannels(std::move(coordinators), has_relay));
}

void CoordinatorChannels::Ended(const absl::Status& status) {
  if (returns_.exchange(false)) {
    current_ = 0;
  } else if (!status.ok() || !through_relay()) {
    ++current_;
  }
}

}  // namespace takt::worker_rpc
