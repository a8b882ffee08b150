// SPDX-License-Identifier: Apache-2.0
#include "common/profile/parameter_counts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::profile {
namespace {

using ::testing::ElementsAre;

TEST(UpdatedParameters, CountByTheBytesThatTheirUpdateMoves) {
  model::Model model;
  for (const std::int64_t elements : {10, 20}) {
    model.layers.emplace_back();
    model.layers.back().parameters.push_back({.name = "w", .shape = {elements}});
  }
  const mesh::Partition partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                                     {StageId(1), PpRank(1), LayerId(1), LayerId(2)}};
  EXPECT_THAT(UpdatedParameters(model, partition, 2), ElementsAre(10, 20));
  // An update moves 16 bytes beside 8 for each moment. AdamW has two moments.
  model.layers[0].parameters[0].moments = 1;
  model.layers[1].parameters[0].moments = 0;
  EXPECT_THAT(UpdatedParameters(model, partition, 2), ElementsAre(10 * 24 / 32.0, 20 * 16 / 32.0));
  EXPECT_EQ(GradientElements(model, model.layers[1]), 20);
  // Five times two products of 2 x 2 x 5 and one of 2 x 2 x 2, of two FLOPs each, at 6 a byte.
  model.layers[0].parameters[0].shape = {2, 5};
  model.layers[0].parameters[0].by_muon = true;
  EXPECT_DOUBLE_EQ(UpdatedParameters(model, partition, 2)[0], (10 * 24 + 480 / 6.0) / 32);
}

}  // namespace
}  // namespace takt::profile
