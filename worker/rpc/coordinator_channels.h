// SPDX-License-Identifier: Apache-2.0
// The gRPC channels to the coordinators that may lead.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/certificates/tls_files.h"

namespace takt::worker_rpc {

struct ChannelOptions {
  std::string coordinator;  // unix:PATH or HOST:PORT, several of them separated by commas
  certificates::TlsFiles tls;
  bool insecure = false;  // TCP without TLS is allowed
  // unix:PATH of the relay of this host (relay.h), which is tried first; empty: there is none.
  std::string relay = {};
};

// Returns the socket on which the relay that listens on unix:PATH answers for its health
// (common/rpc/health.h): PATH.health.
std::string HealthSocketOf(const std::string& relay);

// Thread-safe. The worker speaks with one address of a list at a time, and begins with the first
// one. The relay of the host, if there is one, comes first in the list, and the coordinators
// follow. A channel connects when it is first used, and again after every loss.
class CoordinatorChannels final {
 public:
  // Errors: as CheckEndpoint, of each address; FieldError: --relay is not unix:PATH.
  static absl::StatusOr<std::unique_ptr<CoordinatorChannels>> Create(const ChannelOptions& options);

  // Each has a TCP connection of its own.
  std::shared_ptr<grpc::Channel> control() const { return current().control; }
  std::shared_ptr<grpc::Channel> bulk() const { return current().bulk; }
  const std::string& address() const { return current().address; }

  bool has_relay() const { return has_relay_; }
  bool through_relay() const { return has_relay_ && current_ % coordinators_.size() == 0; }

  // Call it when the control stream has ended. If a relay ended it with OK, the relay has lost its
  // coordinator, and is dialled again. Otherwise the other side does not lead or does not answer,
  // and the next address is tried.
  void Ended(const absl::Status& status);
  // Makes the relay the next address, once the control stream has ended.
  void ReturnToRelay() { returns_ = true; }

 private:
  struct Coordinator {
    std::string address;
    std::shared_ptr<grpc::Channel> control, bulk;
  };

  CoordinatorChannels(std::vector<Coordinator> coordinators, bool has_relay)
      : coordinators_(std::move(coordinators)), has_relay_(has_relay) {}
  const Coordinator& current() const { return coordinators_[current_ % coordinators_.size()]; }

  const std::vector<Coordinator> coordinators_;  // not empty
  const bool has_relay_;                         // the first of them is the relay
  std::atomic<std::size_t> current_ = 0;         // counts on; the coordinator is the rest
  std::atomic<bool> returns_ = false;
};

}  // namespace takt::worker_rpc
