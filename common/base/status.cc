// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "takt/v1/error.pb.h"

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

absl::Status InvalidField(FieldError error) {
  std::vector<FieldError> errors;
  errors.push_back(std::move(error));
  return InvalidFields(std::move(errors));
}

absl::Status InvalidFields(std::vector<FieldError> errors) {
  std::string message;
  v1::ErrorDetail detail;
  for (const FieldError& error : errors) {
    absl::StrAppend(&message, message.empty() ? "" : "\n", error.ToString());
    v1::FieldViolation* out = detail.add_violations();
    out->set_field(error.field);
    out->set_value(error.value);
    out->set_rule(error.rule);
    out->set_fix(error.fix);
    out->set_where(error.where);
  }
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

std::vector<FieldError> FieldErrorsOf(const absl::Status& status) {
  std::vector<FieldError> errors;
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorDetailUrl);
  v1::ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return errors;
  for (const v1::FieldViolation& violation : detail.violations()) {
    errors.push_back({.field = violation.field(),
                      .value = violation.value(),
                      .rule = violation.rule(),
                      .fix = violation.fix(),
                      .where = violation.where()});
  }
  return errors;
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
