// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "common/base/status.h"
#include "tests/conformance/device_ends.h"
#include "tests/conformance/transport_kinds.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/transport/ipc/ipc_transport.h"

namespace takt::conformance {
namespace {

// Refuses everything, so that no message goes another way.
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
  static absl::Status Refusal() { return absl::FailedPreconditionError("it does not copy"); }
};

class IpcRank final : public DeviceRank {
 public:
  IpcRank(const transport::TransportOptions& options, std::unique_ptr<transport::Transport> host)
      : host_(std::move(host)),
        transport_(transport::ipc::CreateIpcTransport(
            {.transport = options, .close_timeout = absl::Milliseconds(200)}, *host_,
            std::make_unique<NoOtherWay>(), *device_)) {}

  backend::BackendFactory& device() override { return *device_; }
  transport::DeviceTransport& transport() override { return *transport_; }

 private:
  const std::unique_ptr<backend::BackendFactory> device_ =
      backend::CreateDiscreteBackends({.shared_bytes = std::size_t{256} << 20});
  const std::unique_ptr<transport::Transport> host_;
  const std::unique_ptr<transport::DeviceTransport> transport_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeIpcTransport(
    const transport::TransportOptions& options, transport::Rendezvous& rendezvous) {
  ASSIGN_OR_RETURN(auto host, MakeTransport("auto", options, rendezvous));
  return WithDeviceEnds(std::make_unique<IpcRank>(options, std::move(host)));
}

}  // namespace takt::conformance
