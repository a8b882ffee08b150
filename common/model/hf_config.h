// SPDX-License-Identifier: Apache-2.0
// The shape of a model from the text of a Hugging Face config.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace takt::model {

// `context` of the result is the model's positions; a job may train on less.
// Errors: kInvalidArgument (FieldError, `where` = `name`): not JSON, a key that is missing or has
// the wrong type, or a value that changes the arithmetic in a way we do not have (another
// activation, scaled attention, an untied head). Keys that only matter for generation are ignored;
// so are dropout probabilities: training runs without dropout.
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, std::string_view name);

}  // namespace takt::model
