// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"

#include <cerrno>
#include <string>

#include "gtest/gtest.h"

namespace takt {
namespace {

TEST(FieldErrors, SurviveAsPayloadAndAnnotation) {
  const absl::Status status = InvalidField({.field = "model.heads",
                                            .value = "3",
                                            .rule = "must divide hidden (64)",
                                            .fix = "use 1, 2 or 4"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "model.heads is 3: must divide hidden (64); use 1, 2 or 4");
  const std::vector<FieldError> errors = FieldErrorsOf(Annotate(status, "job x"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].field, "model.heads");
  EXPECT_EQ(errors[0].fix, "use 1, 2 or 4");
}

TEST(FieldErrors, OfAPathThatCannotBeUsedAreNotInvalidInput) {
  const absl::Status status = UnusableField({.field = "data.train.path", .value = "kjv.txt"});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(FieldErrorsOf(status).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(status)[0].value, "kjv.txt");
}

TEST(FileError, BlamesNeitherTheInputNorAPeer) {
  for (const int error : {EINVAL, ESTALE, EIO, ETIMEDOUT, EAGAIN, ECANCELED}) {
    const absl::Status status = FileError(error, "cannot open kjv.txt");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown) << error;
    EXPECT_EQ(std::string(status.message()).find("cannot open kjv.txt: "), 0u) << status;
  }
  EXPECT_TRUE(absl::IsNotFound(FileError(ENOENT, "f")));
  EXPECT_TRUE(absl::IsPermissionDenied(FileError(EACCES, "f")));
  EXPECT_TRUE(absl::IsResourceExhausted(FileError(ENOSPC, "f")));
}

TEST(SharedInput, KeepsTheErrorAndItsFields) {
  EXPECT_TRUE(SharedInput(absl::OkStatus()).ok());
  const absl::Status plain = InvalidField({.field = "data.train.path"});
  EXPECT_FALSE(IsSharedInput(plain));
  const absl::Status shared = Annotate(SharedInput(plain), "job x");
  EXPECT_TRUE(IsSharedInput(shared));
  EXPECT_TRUE(absl::IsInvalidArgument(shared));
  EXPECT_EQ(FieldErrorsOf(shared).size(), 1u);
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}
absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(AssignOrReturn, StopsAtTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace takt
