// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment.h"

#include <cerrno>

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
  EXPECT_EQ(FailureOf(UnusableField({.field = "f", .value = "v", .rule = "r"})).error, "f is v: r");
}

TEST(FailureOf, SaysWhatItIsDueTo) {
  const auto cause = [](const absl::Status& status) { return FailureOf(status).cause; };
  EXPECT_EQ(cause(InvalidField({.field = "model.heads"})), Cause::kJob);
  EXPECT_EQ(cause(SharedInput(InvalidField({.field = "data.train.path"}))), Cause::kInputs);
  EXPECT_EQ(cause(SharedInput(UnusableField({.field = "data.train.path"}))), Cause::kInputs);
  EXPECT_EQ(cause(UnusableField({.field = "checkpoint.directory"})), Cause::kWorker);
  for (const int error : {EIO, ESTALE, EINVAL, ENOENT, ENOSPC, ETIMEDOUT})
    EXPECT_EQ(cause(FileError(error, "f")), Cause::kWorker) << error;
  EXPECT_EQ(cause(absl::InternalError("the device is lost")), Cause::kWorker);
  EXPECT_EQ(cause(absl::UnavailableError("peer left")), Cause::kPeer);
  EXPECT_EQ(cause(absl::CancelledError("asked to stop")), Cause::kPeer);
  EXPECT_EQ(cause(absl::DataLossError("no checkpoint can be used")), Cause::kUnknown);
}

TEST(FailureOf, SuccessIsNone) {
  EXPECT_EQ(FailureOf(absl::OkStatus()).error, "");
  EXPECT_FALSE(FailureOf(absl::OkStatus()).invalid_input);
}

}  // namespace
}  // namespace takt::control
