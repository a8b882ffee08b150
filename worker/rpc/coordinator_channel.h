// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/certificates/tls_files.h"

namespace takt::worker_rpc {

struct ChannelOptions {
  std::string coordinator;  // unix:PATH or HOST:PORT
  certificates::TlsFiles tls;
  bool insecure = false;  // TCP without TLS is allowed
};

// Returns a channel that connects when it is first used, and again after every loss. Each channel
// has a TCP connection of its own, also when another one has the same options. Errors: as
// CheckEndpoint.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel(const ChannelOptions& options);

}  // namespace takt::worker_rpc
