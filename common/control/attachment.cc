// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment.h"

#include "absl/strings/str_cat.h"

namespace takt::control {

namespace {

Cause CauseOf(const absl::Status& status) {
  if (IsSharedInput(status)) return Cause::kInputs;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return Cause::kJob;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return Cause::kPeer;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:  // an I/O error (FileError)
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return Cause::kWorker;
    default:
      return Cause::kUnknown;
  }
}

}  // namespace

const char* Name(Phase phase) {
  switch (phase) {
    case Phase::kAdmitted:
      return "admitted";
    case Phase::kRefused:
      return "refused";
    case Phase::kFinished:
      return "finished";
    case Phase::kFailed:
      return "failed";
    case Phase::kAborted:
      return "aborted";
    case Phase::kHalted:
      return "halted";
  }
  return "unknown";
}

Failure FailureOf(const absl::Status& status) {
  if (status.ok()) return {};
  Failure failure{.error = std::string(status.message()),
                  .invalid_input = absl::IsInvalidArgument(status),
                  .violations = FieldErrorsOf(status),
                  .cause = CauseOf(status)};
  if (!failure.invalid_input && failure.violations.empty())
    failure.error = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", failure.error);
  return failure;
}

}  // namespace takt::control
