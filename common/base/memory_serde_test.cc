// SPDX-License-Identifier: Apache-2.0
#include "common/base/memory_serde.h"

#include "gtest/gtest.h"

namespace takt {
namespace {

TEST(MemorySerde, EveryKindHasAFieldOfItsName) {
  const auto& fields = *v1::MemoryBytes::descriptor();
  ASSERT_EQ(fields.field_count(), static_cast<int>(kNumMemoryKinds));
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    const auto* field = fields.FindFieldByNumber(static_cast<int>(kind) + 1);
    ASSERT_NE(field, nullptr);
    EXPECT_EQ(field->name(), Name(static_cast<MemoryKind>(kind)));
  }
}

TEST(MemorySerde, ReadsWhatItWrote) {
  MemoryBytes bytes;
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    bytes[static_cast<MemoryKind>(kind)] = std::int64_t{1} << (4 * kind);
  EXPECT_EQ(FromProto(ToProto(bytes)), bytes);
  EXPECT_EQ(ToProto(bytes).optimizer(), 1 << 8);
}

}  // namespace
}  // namespace takt
