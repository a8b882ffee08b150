// SPDX-License-Identifier: Apache-2.0
#include "proto/host_frame.h"

#include <string>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt {
namespace {

TEST(HostFrame, CarriesTheEndOfAStreamWithItsFieldErrors) {
  const absl::Status status = InvalidField(
      {.field = "--name", .value = "n1", .rule = "is another's", .fix = "take another"});
  const v1::HostFrame frame = EndFrame(7, status);
  ASSERT_EQ(frame.parts_size(), 1);
  EXPECT_EQ(frame.parts(0).stream(), 7);
  const absl::Status read = StatusOf(frame.parts(0).end());
  EXPECT_EQ(read, status);
  ASSERT_EQ(FieldErrorsOf(read).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(read)[0].fix, "take another");
  EXPECT_TRUE(StatusOf(EndFrame(7, absl::OkStatus()).parts(0).end()).ok());
}

TEST(HostFrame, GathersSmallPartsInOrderAndLeavesLargeOnesAlone) {
  v1::HostFrame last = FrameOf(1, "a"), next = FrameOf(2, "b");
  ASSERT_TRUE(JoinFrames(last, next));
  ASSERT_EQ(last.parts_size(), 2);
  EXPECT_EQ(last.parts(0).message(), "a");
  EXPECT_EQ(last.parts(1).stream(), 2);
  EXPECT_EQ(last.parts(1).message(), "b");
  v1::HostFrame large = FrameOf(3, std::string(1 << 20, 'x')), small = FrameOf(4, "c");
  EXPECT_FALSE(JoinFrames(last, large));
  ASSERT_EQ(large.parts_size(), 1) << "it is still whole";
  EXPECT_TRUE(JoinFrames(large, small)) << "and others may follow it";
}

TEST(HostFrame, HasRoomForSixtyFourParts) {
  v1::HostFrame frame = FrameOf(0, "");
  int parts = 1;
  for (v1::HostFrame next = FrameOf(parts, ""); JoinFrames(frame, next);
       next = FrameOf(++parts, "")) {
  }
  EXPECT_EQ(frame.parts_size(), 64);
}

}  // namespace
}  // namespace takt
