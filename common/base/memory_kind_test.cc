// SPDX-License-Identifier: Apache-2.0
#include "common/base/memory_kind.h"

#include "gtest/gtest.h"

namespace takt {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

TEST(FormatMemory, TellsSizesOfManyGibibytesApart) {
  EXPECT_EQ(FormatMemory(300), "300 B");
  EXPECT_EQ(FormatMemory(17 * kMebi), "17 MiB");
  EXPECT_EQ(FormatMemory(2150 * kMebi), "2.1 GiB");
  EXPECT_EQ(FormatMemory(143155 * kMebi), "139.8 GiB");
  EXPECT_EQ(FormatMemory(143258 * kMebi), "139.9 GiB");
}

TEST(MemoryBytes, PrintsItsKindsLargestFirstAndLeavesOutEmptyOnes) {
  MemoryBytes bytes;
  bytes[MemoryKind::kStash] = 921 * kMebi;
  bytes[MemoryKind::kWeights] = 1024 * kMebi;
  EXPECT_EQ(ToString(bytes), "1.9 GiB: weights 1.0 GiB, stash 921 MiB");
}

}  // namespace
}  // namespace takt
