// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment.h"

#include "absl/strings/str_cat.h"

namespace takt::control {

Failure FailureOf(const absl::Status& status) {
  if (status.ok()) return {};
  const bool invalid_input = absl::IsInvalidArgument(status);
  const std::string message(status.message());
  return {.error = invalid_input
                       ? message
                       : absl::StrCat(absl::StatusCodeToString(status.code()), ": ", message),
          .invalid_input = invalid_input,
          .violations = FieldErrorsOf(status)};
}

}  // namespace takt::control
