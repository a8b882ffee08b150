// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_connections.h"

#include <limits>

#include "gtest/gtest.h"

namespace takt::session {
namespace {

// The first gradient of a step comes when most of the step is over.
TEST(RankConnections, ARankWaitsForMessagesForManySteps) {
  EXPECT_EQ(OperationTimeout(0), absl::Minutes(5));
  EXPECT_EQ(OperationTimeout(2), absl::Minutes(5));
  EXPECT_EQ(OperationTimeout(600), absl::Minutes(100));
  EXPECT_EQ(OperationTimeout(std::numeric_limits<double>::infinity()), absl::Hours(24 * 7));
}

}  // namespace
}  // namespace takt::session
