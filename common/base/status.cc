// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/field_error_serde.h"

namespace takt {

std::string FieldError::ToString() const {
  std::string text;
  if (!where.empty()) absl::StrAppend(&text, where, ": ");
  absl::StrAppend(&text, field);
  if (!value.empty()) absl::StrAppend(&text, " is ", value);
  absl::StrAppend(&text, ": ", rule);
  if (!fix.empty()) absl::StrAppend(&text, "; ", fix);
  return text;
}

namespace {

// The key of a payload that is there or not.
constexpr char kSharedInputUrl[] = "takt/shared-input";

absl::Status FieldErrorStatus(absl::StatusCode code, const std::vector<FieldError>& errors) {
  std::string message;
  for (const FieldError& error : errors) {
    absl::StrAppend(&message, message.empty() ? "" : "\n", error.ToString());
  }
  absl::Status status(code, message);
  status.SetPayload(kErrorDetailUrl, absl::Cord(ErrorDetailOf(errors)));
  return status;
}

}  // namespace

absl::Status InvalidField(FieldError error) { return InvalidFields({std::move(error)}); }

absl::Status InvalidFields(std::vector<FieldError> errors) {
  return FieldErrorStatus(absl::StatusCode::kInvalidArgument, errors);
}

absl::Status UnusableField(FieldError error) {
  return FieldErrorStatus(absl::StatusCode::kFailedPrecondition, {std::move(error)});
}

absl::Status FileError(int error_number, const std::string& what) {
  const absl::Status status = absl::ErrnoToStatus(error_number, what);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return absl::UnknownError(status.message());
    default:
      return status;
  }
}

absl::Status SharedInput(absl::Status status) {
  if (!status.ok()) status.SetPayload(kSharedInputUrl, absl::Cord());
  return status;
}

bool IsSharedInput(const absl::Status& status) {
  return status.GetPayload(kSharedInputUrl).has_value();
}

std::vector<FieldError> FieldErrorsOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorDetailUrl);
  return payload.has_value() ? ParseErrorDetail(std::string(*payload)) : std::vector<FieldError>();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace takt
