// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/coordinator_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/un.h>

#include <string_view>

#include "common/base/status.h"
#include "proto/channel_arguments.h"

namespace takt::rpc {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
// A Prepare carries a whole program.
constexpr int kMaxMessageBytes = 64 << 20;

absl::Status CheckTarget(const ChannelOptions& options) {
  const std::string_view target = options.coordinator;
  if (target.starts_with(kUnix)) {
    if (target.size() - kUnix.size() <= kMaxSocketPath) return absl::OkStatus();
    return InvalidField({.field = "--coordinator",
                         .value = options.coordinator,
                         .rule = "the path of a Unix socket has at most 107 bytes",
                         .fix = "use a shorter directory"});
  }
  const std::size_t colon = target.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == target.size()) {
    return InvalidField({.field = "--coordinator",
                         .value = options.coordinator,
                         .rule = "must be unix:PATH or HOST:PORT",
                         .fix = "name the address that the coordinator printed when it started"});
  }
  if (options.insecure) return absl::OkStatus();
  return InvalidField({.field = "--coordinator",
                       .value = options.coordinator,
                       .rule = "TCP carries secrets and needs TLS",
                       .fix = "use unix:PATH, or --insecure on a network that you trust"});
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel(const ChannelOptions& options) {
  RETURN_IF_ERROR(CheckTarget(options));
  grpc::ChannelArguments arguments = ClientArguments();
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // One connection for each process: a shared one would outlive what closes it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(options.coordinator, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace takt::rpc
