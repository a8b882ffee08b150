// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/nfc.h"

#include "gtest/gtest.h"

namespace takt::tokenizer {
namespace {

TEST(ToNfc, ComposesAcrossThePiecesThatItWorksOn) {
  std::string storage;
  EXPECT_EQ(ToNfc("ascii", storage), "ascii");
  EXPECT_EQ(ToNfc("e\xCC\x81", storage), "\xC3\xA9");
  // The end of the first piece lies between a letter and its accent.
  const std::string before((64 << 10) - 1, 'x');
  EXPECT_EQ(ToNfc(before + "e\xCC\x81y", storage), before + "\xC3\xA9y");
}

}  // namespace
}  // namespace takt::tokenizer
