// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment.h"

namespace takt::control {

Failure FailureOf(const absl::Status& status) {
  if (status.ok()) return {};
  const bool invalid_input = absl::IsInvalidArgument(status);
  return {.error = invalid_input ? std::string(status.message()) : status.ToString(),
          .invalid_input = invalid_input,
          .violations = FieldErrorsOf(status)};
}

}  // namespace takt::control
