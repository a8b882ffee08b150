// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/selection/create.h"

#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace takt::transport {
namespace {

TEST(CreateDeviceTransport, RefusesWhatOnlyGpusHaveWhereTheMemoryIsTheHosts) {
  testing::InprocHub hub;
  testing::MapRendezvous rendezvous;
  const TransportOptions options{.rank = Rank(0), .num_ranks = 2, .job = "test"};
  const auto host = hub.Connect(options);
  const auto backends = backend::CreateCpuBackends({});
  const auto create = [&](config::TransportKind kind) {
    return CreateDeviceTransport({.transport = options, .kind = kind}, rendezvous, *host,
                                 *backends);
  };
  EXPECT_EQ(create(config::TransportKind::kCudaIpc).status().message(),
            "parallelism.transport is cuda_ipc: carries what is in the memory of GPUs, and this "
            "job computes on cores; use auto, shm or tcp, or parallelism.device: cuda");
  EXPECT_EQ(create(config::TransportKind::kNccl).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(config::TransportKind::kAuto).value(), nullptr);
}

}  // namespace
}  // namespace takt::transport
