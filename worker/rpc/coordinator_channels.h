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

#include "absl/status/statusor.h"
#include "common/certificates/tls_files.h"

namespace takt::worker_rpc {

struct ChannelOptions {
  std::string coordinator;  // unix:PATH or HOST:PORT, several of them separated by commas
  certificates::TlsFiles tls;
  bool insecure = false;  // TCP without TLS is allowed
};

// Thread-safe. There is one coordinator at a time with which the worker speaks, at first the first
// one. A channel connects when it is first used, and again after every loss.
class CoordinatorChannels final {
 public:
  // Errors: as CheckEndpoint, of each address.
  static absl::StatusOr<std::unique_ptr<CoordinatorChannels>> Create(const ChannelOptions& options);

  // Each has a TCP connection of its own.
  std::shared_ptr<grpc::Channel> control() const { return current().control; }
  std::shared_ptr<grpc::Channel> bulk() const { return current().bulk; }
  const std::string& address() const { return current().address; }

  // The coordinator does not lead, or does not answer: the next one is tried.
  void GoOn() { ++current_; }

 private:
  struct Coordinator {
    std::string address;
    std::shared_ptr<grpc::Channel> control, bulk;
  };

  explicit CoordinatorChannels(std::vector<Coordinator> coordinators)
      : coordinators_(std::move(coordinators)) {}
  const Coordinator& current() const { return coordinators_[current_ % coordinators_.size()]; }

  const std::vector<Coordinator> coordinators_;  // not empty
  std::atomic<std::size_t> current_ = 0;         // counts on; the coordinator is the rest
};

}  // namespace takt::worker_rpc
