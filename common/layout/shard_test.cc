// SPDX-License-Identifier: Apache-2.0
#include "common/layout/shard.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::layout {
namespace {

using ::testing::ElementsAre;

// A norm, a matrix of two blocks and a half, and a bias. Each begins on a cache line.
const std::vector<FloatRun> kTensors = {{0, 60}, {64, 10240}, {10304, 100}};

TEST(Shards, AreCutWhereBlocksBegin) {
  EXPECT_THAT(CutIntoShards(kTensors, 1), ElementsAre(FloatRun{0, 10404}));
  // Five blocks: the norm, three of the matrix, the bias.
  EXPECT_THAT(CutIntoShards(kTensors, 2), ElementsAre(FloatRun{0, 4160}, FloatRun{4160, 6244}));
  EXPECT_THAT(CutIntoShards(kTensors, 5),
              ElementsAre(FloatRun{0, 64}, FloatRun{64, 4096}, FloatRun{4160, 4096},
                          FloatRun{8256, 2048}, FloatRun{10304, 100}));
}

TEST(Shards, OfMoreRanksThanBlocksMayBeEmpty) {
  const std::vector<FloatRun> norm = {{128, 7}};
  EXPECT_THAT(CutIntoShards(norm, 3),
              ElementsAre(FloatRun{128, 0}, FloatRun{128, 0}, FloatRun{128, 7}));
}

TEST(Shards, HaveEveryElementOfEveryTensorOnceInWholeBlocks) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const std::vector<FloatRun> shards = CutIntoShards(kTensors, ranks);
    for (const FloatRun& tensor : kTensors) {
      std::int64_t next = 0;
      for (const FloatRun& shard : shards) {
        const FloatRun part = PartIn(shard, tensor);
        if (part.count == 0) continue;
        EXPECT_EQ(part.first, next);
        EXPECT_EQ(part.first % kShardBlock, 0);
        next = part.end();
      }
      EXPECT_EQ(next, tensor.count) << ranks << " ranks";
    }
  }
}

TEST(Shards, ATensorOutsideHasNoPart) {
  EXPECT_EQ(PartIn({0, 64}, {64, 100}), FloatRun());
  EXPECT_EQ(PartIn({164, 10}, {64, 100}), FloatRun());
  EXPECT_EQ(PartIn({100, 10}, {64, 100}), (FloatRun{36, 10}));
}

TEST(Shards, OfABucketCutEachTableByItself) {
  const std::vector<BucketTensor> bucket = {{.run = {0, 60}},
                                            {.run = {64, 10240}},
                                            {.run = {10304, 8192}, .alone = true},
                                            {.run = {18496, 100}}};
  const std::vector<ShardUnit> units = CutBucket(bucket, 2);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[0].first, 0u);
  EXPECT_THAT(units[0].shards, ElementsAre(FloatRun{0, 4160}, FloatRun{4160, 6144}));
  EXPECT_EQ(units[1].first, 2u);
  EXPECT_THAT(units[1].shards, ElementsAre(FloatRun{10304, 4096}, FloatRun{14400, 4096}));
  EXPECT_EQ(units[2].first, 3u);
  EXPECT_THAT(units[2].shards, ElementsAre(FloatRun{18496, 0}, FloatRun{18496, 100}));
}

}  // namespace
}  // namespace takt::layout
