// SPDX-License-Identifier: Apache-2.0
// The texts that stand beside the weights in a Hugging Face folder: what hf_config.h reads,
// written.
#pragma once

#include <string>
#include <string_view>

#include "common/model/model.h"

namespace takt::model {

struct HfConfigOptions {
  std::string_view torch_dtype = "float32";  // of the weights beside it, or that they came from
  // The config.json that the shape was read from; its keys that say nothing of the shape (token
  // ids, dropout, who made it) are kept. Empty, or no JSON object: there is none.
  std::string_view source;
};

// The text of config.json, from which ParseHfConfig reads `config` again, except that its context
// is the positions. Rotary positions are written in the words of transformers 4 and of 5.
// Precondition: CheckConfig finds nothing wrong, and the family is not emulated.
std::string FormatHfConfig(const ModelConfig& config, const HfConfigOptions& options = {});

// The text of generation_config.json: the special tokens that a config.json names.
std::string FormatGenerationConfig(std::string_view config_text);

// `torch_dtype` of a config.json, or `dtype`, as newer files call it; empty: it has none.
std::string TorchDtypeIn(std::string_view config_text);

}  // namespace takt::model
