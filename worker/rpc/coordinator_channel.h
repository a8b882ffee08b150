// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace takt::rpc {

struct ChannelOptions {
  std::string coordinator;  // unix:PATH or HOST:PORT
  bool insecure = false;    // TCP without TLS is meant
};

// Connects lazily and again after every loss.
// Errors: kInvalidArgument (FieldError): no address, a path longer than a Unix socket's may be, TCP
// without --insecure.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel(const ChannelOptions& options);

}  // namespace takt::rpc
