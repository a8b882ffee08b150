// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/device_ends.h"
#include "tests/conformance/transport_kinds.h"
#include "worker/transport/nccl/nccl_testing.h"

namespace takt::conformance {
namespace {

using transport::nccl::TestRank;

class NcclRank final : public DeviceRank {
 public:
  NcclRank(transport::nccl::TestWorld& world, const transport::TransportOptions& options)
      : rank_(world, options.rank.value(),
              TestRank::Options{.num_ranks = options.num_ranks,
                                .connect_timeout = options.connect_timeout,
                                .operation_timeout = options.operation_timeout}) {}

  backend::BackendFactory& device() override { return *rank_.device; }
  transport::DeviceTransport& transport() override { return *rank_.transport; }

 private:
  TestRank rank_;
};

class NcclGroup final : public TransportGroup {
 public:
  absl::StatusOr<std::unique_ptr<transport::Transport>> Connect(
      const transport::TransportOptions& options) override {
    return WithDeviceEnds(std::make_unique<NcclRank>(world_, options));
  }

 private:
  transport::nccl::FakeNccl nccl_;
  transport::nccl::TestWorld world_;
};

}  // namespace

std::unique_ptr<TransportGroup> MakeNcclGroup() { return std::make_unique<NcclGroup>(); }

}  // namespace takt::conformance
