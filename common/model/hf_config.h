// SPDX-License-Identifier: Apache-2.0
// Reads the shape of a model from the text of a Hugging Face config.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace takt::model {

// In the result `context` is the model's positions; a job may train on less. Keys that only matter
// for generation are ignored. Training runs without dropout, so that its probabilities are only
// reported.
// Errors: kInvalidArgument (FieldError, `where` = `name`): the text is not JSON, a key is missing
// or has the wrong type, or a value changes the arithmetic in a way that Takt does not support
// (another activation, scaled attention, an untied head, a window where the family has none).
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, std::string_view name);

}  // namespace takt::model
