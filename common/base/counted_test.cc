// SPDX-License-Identifier: Apache-2.0
#include "common/base/counted.h"

#include "gtest/gtest.h"

namespace takt {
namespace {

TEST(Counted, SaysTheSingularOfOneAlone) {
  EXPECT_EQ(Counted(0, "rank"), "0 ranks");
  EXPECT_EQ(Counted(1, "rank"), "1 rank");
  EXPECT_EQ(Counted(2, "rank"), "2 ranks");
  EXPECT_EQ(Counted(1, "microbatch"), "1 microbatch");
  EXPECT_EQ(Counted(8, "microbatch"), "8 microbatches");
}

}  // namespace
}  // namespace takt
