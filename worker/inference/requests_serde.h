// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/inference/requests.h"

namespace takt::inference {

// Reads the bytes of a takt.v1.LocalModelRequest. Errors: kDataLoss (they are none),
// kInvalidArgument (a FieldError: a value is out of its range).
absl::StatusOr<Request> ParseRequest(const std::string& bytes);

// Returns the length of a takt.v1.LocalModelAnswer and its bytes.
std::string FormatAnswer(const Answer& answer);

}  // namespace takt::inference
