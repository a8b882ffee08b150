// SPDX-License-Identifier: Apache-2.0
#include "cli/base/exit_code.h"

#include "common/base/status.h"

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(ExitCode, FollowsFromTheStatus) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), ExitCode::kDone);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), ExitCode::kFailed);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), ExitCode::kFailed);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), ExitCode::kInvalidInput);
  EXPECT_EQ(ExitCodeOf(absl::AlreadyExistsError("")), ExitCode::kInvalidInput);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), ExitCode::kNotFound);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), ExitCode::kRefused);
  EXPECT_EQ(ExitCodeOf(absl::UnknownError("")), ExitCode::kOutcomeUnknown);
}

TEST(ExitCode, KeepsItsNumbers) {
  EXPECT_EQ(static_cast<int>(ExitCode::kDone), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::kFailed), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::kInvalidInput), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::kUnreachable), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::kNotFound), 4);
  EXPECT_EQ(static_cast<int>(ExitCode::kRefused), 5);
  EXPECT_EQ(static_cast<int>(ExitCode::kOutcomeUnknown), 6);
}

TEST(ExitCode, OfAnEndedJobIsItsVerdict) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(VerdictOf(job), ExitCode::kDone);
  job.set_state(v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(VerdictOf(job), ExitCode::kFailed);
  job.set_state(v1::JOB_STATE_FAILED);
  EXPECT_EQ(VerdictOf(job), ExitCode::kFailed);
  job.set_invalid_input(true);
  EXPECT_EQ(VerdictOf(job), ExitCode::kInvalidInput);
}

TEST(ExitCode, ErrorOfAnEndedJobSaysWhyAndWhichFields) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(ErrorOf(job).ok());
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("worker w lost");
  EXPECT_EQ(ErrorOf(job), absl::AbortedError("worker w lost"));
  job.set_invalid_input(true);
  job.add_violations()->set_field("data.train.path");
  EXPECT_TRUE(absl::IsInvalidArgument(ErrorOf(job)));
  ASSERT_EQ(FieldErrorsOf(ErrorOf(job)).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(ErrorOf(job))[0].field, "data.train.path");
}

}  // namespace
}  // namespace takt::cli
