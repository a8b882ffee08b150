// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "worker/transport/device_transport.h"

namespace takt::testing {

// Refuses everything. Where a transport would fall back to another one, tests give it this one.
class NoOtherWay final : public transport::DeviceTransport {
 public:
  absl::StatusOr<std::unique_ptr<transport::SendChannel>> OpenSend(Rank, const std::string&,
                                                                   std::size_t) override {
    return Refusal();
  }
  absl::StatusOr<std::unique_ptr<transport::RecvChannel>> OpenRecv(Rank, const std::string&,
                                                                   std::size_t) override {
    return Refusal();
  }
  absl::StatusOr<std::unique_ptr<transport::Collective>> OpenSums(
      const transport::CollectiveOptions&) override {
    return Refusal();
  }
  void Abort() override {}

 private:
  static absl::Status Refusal() { return absl::FailedPreconditionError("there is no other way"); }
};

}  // namespace takt::testing
