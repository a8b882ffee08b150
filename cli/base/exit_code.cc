// SPDX-License-Identifier: Apache-2.0
#include "cli/base/exit_code.h"

#include "absl/strings/cord.h"
#include "common/base/status.h"
#include "takt/v1/error.pb.h"

namespace takt::cli {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
      return ExitCode::kInvalidInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnreachable;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kRefused;
    case absl::StatusCode::kUnknown:
      return ExitCode::kOutcomeUnknown;
    case absl::StatusCode::kFailedPrecondition:
      // A path that a command was given cannot be used here (UnusableField).
      return FieldErrorsOf(status).empty() ? ExitCode::kFailed : ExitCode::kInvalidInput;
    default:
      return ExitCode::kFailed;
  }
}

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

absl::Status ErrorOf(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return absl::OkStatus();
  if (job.state() == v1::JOB_STATE_CANCELLED) return absl::CancelledError(job.reason());
  if (!job.invalid_input()) return absl::AbortedError(job.reason());
  absl::Status status = absl::InvalidArgumentError(job.reason());
  v1::ErrorDetail detail;
  *detail.mutable_violations() = job.violations();
  status.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

ExitCode VerdictOf(const v1::Job& job) { return ExitCodeOf(ErrorOf(job)); }

}  // namespace takt::cli
