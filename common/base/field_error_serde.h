// SPDX-License-Identifier: Apache-2.0
// FieldError as takt.v1.FieldViolation, for what is stored and for what workers say.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "takt/v1/error.pb.h"

namespace takt {

using FieldViolations = google::protobuf::RepeatedPtrField<v1::FieldViolation>;

FieldViolations ToProto(const std::vector<FieldError>& errors);
std::vector<FieldError> FromProto(const FieldViolations& violations);

}  // namespace takt
