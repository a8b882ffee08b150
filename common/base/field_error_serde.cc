// SPDX-License-Identifier: Apache-2.0
#include "common/base/field_error_serde.h"

namespace takt {

FieldViolations ToProto(const std::vector<FieldError>& errors) {
  FieldViolations violations;
  for (const FieldError& error : errors) {
    v1::FieldViolation* out = violations.Add();
    out->set_field(error.field);
    out->set_value(error.value);
    out->set_rule(error.rule);
    out->set_fix(error.fix);
    out->set_where(error.where);
  }
  return violations;
}

std::vector<FieldError> FromProto(const FieldViolations& violations) {
  std::vector<FieldError> errors;
  for (const v1::FieldViolation& violation : violations) {
    errors.push_back({.field = violation.field(),
                      .value = violation.value(),
                      .rule = violation.rule(),
                      .fix = violation.fix(),
                      .where = violation.where()});
  }
  return errors;
}

std::string ErrorDetailOf(const std::vector<FieldError>& errors) {
  v1::ErrorDetail detail;
  *detail.mutable_violations() = ToProto(errors);
  return detail.SerializeAsString();
}

std::vector<FieldError> ParseErrorDetail(const std::string& text) {
  v1::ErrorDetail detail;
  if (!detail.ParseFromString(text)) return {};
  return FromProto(detail.violations());
}

}  // namespace takt
