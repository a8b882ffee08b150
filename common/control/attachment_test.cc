// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::control {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(FailureOf, AWrongJobIsToldToItsAuthorWithoutACode) {
  const Failure failure = FailureOf(absl::InvalidArgumentError("no such file"));
  EXPECT_EQ(failure.error, "no such file");
  EXPECT_TRUE(failure.invalid_input);
  EXPECT_THAT(failure.violations, IsEmpty());
  EXPECT_THAT(FailureOf(InvalidField({.field = "data.train"})).violations, SizeIs(1));
}

TEST(FailureOf, AnyOtherErrorBeginsWithItsCode) {
  const Failure failure = FailureOf(absl::UnavailableError("peer left"));
  EXPECT_EQ(failure.error, "UNAVAILABLE: peer left");
  EXPECT_FALSE(failure.invalid_input);
  EXPECT_EQ(FailureOf(UnusableField({.field = "f", .value = "v", .rule = "r"})).error,
            "FAILED_PRECONDITION: f is v: r");
}

TEST(FailureOf, SuccessIsNone) {
  EXPECT_EQ(FailureOf(absl::OkStatus()).error, "");
  EXPECT_FALSE(FailureOf(absl::OkStatus()).invalid_input);
}

}  // namespace
}  // namespace takt::control
