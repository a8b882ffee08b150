// SPDX-License-Identifier: Apache-2.0
#include "common/model/head_slices.h"

#include "gtest/gtest.h"

namespace takt::model {
namespace {

TEST(HeadSliceOf, IsAllRowsWhereTheirLogitsAreFew) {
  EXPECT_EQ(HeadSliceOf(0, 0), 0);
  EXPECT_EQ(HeadSliceOf(2048, 1 << 17), 2048);
  EXPECT_EQ(HeadSliceOf(1 << 20, 256), 1 << 20);
  EXPECT_EQ(HeadSliceOf(1024, 1 << 20), 1024);
}

TEST(HeadSliceOf, CutsRowsIntoAboutEqualPartsOfWholeLines) {
  EXPECT_EQ(HeadSliceOf(4096, 1 << 17), 2048);
  EXPECT_EQ(HeadSliceOf(2049, 1 << 17), 1088);  // and 961
  EXPECT_EQ(HeadSliceOf(8192, 128256), 2048);   // Llama 3.1
  EXPECT_EQ(HeadSliceOf(65536, 50257), 5056);   // GPT-2
  EXPECT_EQ(HeadSliceOf(4096, 1 << 20), 1024);
  for (std::int64_t rows = 1025; rows < 20000; rows += 37) {
    const std::int64_t slice = HeadSliceOf(rows, 151936);
    if (rows <= 1766) {
      ASSERT_EQ(slice, rows);
      continue;
    }
    ASSERT_EQ(slice % 64, 0) << rows;
    ASSERT_LE(slice * 151936, kMostSliceLogits) << rows;
    ASSERT_LT(slice, rows);
  }
}

TEST(RowSlices, HaveEachRowOnce) {
  for (const std::int64_t slice : {1, 3, 8, 19, 20}) {
    std::int64_t next = 0;
    for (const auto& [first, rows] : RowSlices(19, slice)) {
      EXPECT_EQ(first, next);
      EXPECT_TRUE(rows == slice || first + rows == 19);
      next += rows;
    }
    EXPECT_EQ(next, 19);
  }
}

}  // namespace
}  // namespace takt::model
