// SPDX-License-Identifier: Apache-2.0
// Writes the texts beside the weights in a Hugging Face folder, which hf_config.h reads.
#pragma once

#include <string>
#include <string_view>

#include "common/model/model.h"

namespace takt::model {

struct HfConfigOptions {
  std::string_view torch_dtype = "float32";  // dtype of the weights beside it, or of their source
  // The config.json from which the shape was read. Its keys that say nothing about the shape (token
  // ids, dropout, the program that wrote it) are kept. There is none if this is empty or not a JSON
  // object.
  std::string_view source;
};

// Returns the text of config.json. ParseHfConfig reads `config` from it again, except that the
// context is the positions. Rotary positions have the keys of transformers 4 and of 5.
// Precondition: CheckConfig accepts `config`, and the family is not emulated.
std::string FormatHfConfig(const ModelConfig& config, const HfConfigOptions& options = {});

// Returns a config.json with its head size where an earlier build wrote 0, and otherwise the text
// as it is.
std::string WithHeadSize(std::string_view config_text);

// Returns the text of generation_config.json, with the special tokens that a config.json names.
std::string FormatGenerationConfig(std::string_view config_text);

// Returns `torch_dtype` of a config.json, or `dtype`, which is its name in newer files. It is empty
// if there is none.
std::string TorchDtypeIn(std::string_view config_text);

}  // namespace takt::model
