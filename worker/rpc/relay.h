// SPDX-License-Identifier: Apache-2.0
// The relay of a host. The workers of the host attach to it over a Unix socket, as they would to
// the coordinator. It carries their streams over one connection to the coordinator. It makes no
// decisions and keeps no state: a worker that loses the relay loses no report.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rpc/coordinator_channels.h"

namespace takt::worker_rpc {

struct RelayOptions {
  std::string listen;                       // unix:PATH
  CoordinatorChannels* channels = nullptr;  // borrowed for the relay's life
  // These two have the meaning that they have in UplinkOptions.
  absl::Duration patience = absl::Seconds(60);
  absl::Duration refused_backoff = absl::Seconds(10);
  std::function<void()> on_attached;  // called at every attachment; may be empty
};

// Thread-safe. It serves until it is destroyed.
class Relay {
 public:
  // Replaces a socket that an earlier process left. Errors: kInvalidArgument (FieldError on
  // --listen); kUnavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<Relay>> Start(const RelayOptions& options);
  virtual ~Relay() = default;

  // Returns OK while it is connected to the coordinator, and otherwise why not.
  virtual absl::Status attachment() const = 0;
  struct Counts {
    std::int64_t workers = 0;               // now attached here, or waiting
    std::int64_t messages = 0, frames = 0;  // to the coordinator, ever
  };
  virtual Counts counts() const = 0;
};

}  // namespace takt::worker_rpc
