// SPDX-License-Identifier: Apache-2.0
// For tests: ranks with simulated devices, which do nothing before the host waits for them.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/transport/nccl/nccl_testing.h"

namespace takt::train {

// Calls `body` for each of so many ranks, on a thread of its own. It opens groups by the rank's
// transport: of NCCL, or through the host.
inline void ForAllDevices(
    int ranks, bool has_nccl,
    const std::function<absl::Status(transport::nccl::TestRank&, int)>& body) {
  transport::nccl::FakeNccl nccl;
  {
    transport::nccl::TestWorld world;
    std::vector<std::unique_ptr<transport::nccl::TestRank>> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(std::make_unique<transport::nccl::TestRank>(
          world, rank,
          transport::nccl::TestRank::Options{
              .num_ranks = ranks, .has_nccl = has_nccl, .lazy = true}));
    }
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::unique_ptr<transport::nccl::TestRank>& mine = all[static_cast<std::size_t>(rank)];
        const absl::Status status = body(*mine, rank);
        EXPECT_TRUE(status.ok()) << rank << ": " << status;
        mine.reset();  // all ranks end together
      });
    }
  }
  EXPECT_THAT(nccl.misuse(), ::testing::IsEmpty());
}

}  // namespace takt::train
