// SPDX-License-Identifier: Apache-2.0
#include "common/base/id.h"

#include <type_traits>

#include "gtest/gtest.h"

namespace takt {
namespace {

static_assert(!std::is_convertible_v<StageId, MicrobatchId>);
static_assert(!std::is_convertible_v<int, StageId>);

TEST(Id, ComparesByValue) {
  EXPECT_LT(StageId(1), StageId(2));
  EXPECT_EQ(StageId(3).value(), 3);
}

}  // namespace
}  // namespace takt
