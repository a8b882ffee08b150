// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "common/base/status.h"
#include "tests/conformance/device_ends.h"
#include "tests/conformance/transport_kinds.h"
#include "tests/testing/no_other_way.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/transport/ipc/ipc_transport.h"

namespace takt::conformance {
namespace {

class IpcRank final : public DeviceRank {
 public:
  IpcRank(const transport::TransportOptions& options, std::unique_ptr<transport::Transport> host)
      : host_(std::move(host)),
        transport_(transport::ipc::CreateIpcTransport(
            {.transport = options, .close_timeout = absl::Milliseconds(200)}, *host_,
            std::make_unique<testing::NoOtherWay>(), *device_)) {}

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
