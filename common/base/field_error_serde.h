// SPDX-License-Identifier: Apache-2.0
// Writes FieldError as takt.v1.FieldViolation and reads it back. It stands in stored records, in
// reports of workers and in the payload of a status.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "takt/v1/error.pb.h"

namespace takt {

using FieldViolations = google::protobuf::RepeatedPtrField<v1::FieldViolation>;

FieldViolations ToProto(const std::vector<FieldError>& errors);
std::vector<FieldError> FromProto(const FieldViolations& violations);

// Write the errors as a serialized takt.v1.ErrorDetail and read them back. A text that is no such
// message gives no errors.
std::string ErrorDetailOf(const std::vector<FieldError>& errors);
std::vector<FieldError> ParseErrorDetail(const std::string& text);

}  // namespace takt
