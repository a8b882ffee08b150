// SPDX-License-Identifier: Apache-2.0
// For tests: ranks that meet.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {

// Calls `body` for each of so many ranks, on a thread of its own, with the group of all of them.
inline void ForAllRanks(int ranks,
                        const std::function<absl::Status(transport::Collective&)>& body) {
  testing::InprocHub hub;
  std::vector<Rank> group;
  for (int rank = 0; rank < ranks; ++rank) group.emplace_back(rank);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.Connect({.rank = Rank(rank), .num_ranks = ranks, .job = "group"});
      const auto collective = transport::CreateCollective(
                                  transport.get(), {.name = "group", .ranks = group, .index = rank})
                                  .value();
      const absl::Status status = body(*collective);
      EXPECT_TRUE(status.ok()) << rank << ": " << status;
    });
  }
}

}  // namespace takt::train
