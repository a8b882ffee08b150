// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config_text.h"

#include <utility>

#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::model {
namespace {

using json = nlohmann::ordered_json;

// Parses an object. It is empty if the text is not an object.
json ObjectIn(std::string_view text) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? std::move(object) : json::object();
}

// The keys on which the arithmetic depends. They come from the model and never from the source.
json Gpt2Shape(const ModelConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"initializer_range", config.initializer_range},
          {"layer_norm_epsilon", config.norm_epsilon},
          {"n_ctx", config.positions},
          {"n_embd", config.hidden},
          {"n_head", config.heads},
          {"n_inner", config.inner == 4 * config.hidden ? json(nullptr) : json(config.inner)},
          {"n_layer", config.layers},
          {"n_positions", config.positions},
          {"tie_word_embeddings", true},
          {"vocab_size", config.vocab}};
}

json RopeParameters(const ModelConfig& config) {
  if (!config.rope_scaling.has_value()) {
    return {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  }
  const RopeScaling& scaling = *config.rope_scaling;
  return {{"factor", scaling.factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"original_max_position_embeddings", scaling.original_positions},
          {"rope_theta", config.rope_theta},
          {"rope_type", "llama3"}};
}

json LlamaShape(const ModelConfig& config) {
  const bool qwen2 = config.family == Family::kQwen2;
  json shape = {{"architectures", {qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
                {"model_type", qwen2 ? "qwen2" : "llama"},
                {"head_dim", config.head_size},
                {"hidden_act", "silu"},
                {"hidden_size", config.hidden},
                {"initializer_range", config.initializer_range},
                {"intermediate_size", config.inner},
                {"max_position_embeddings", config.positions},
                {"num_attention_heads", config.heads},
                {"num_hidden_layers", config.layers},
                {"num_key_value_heads", config.kv_heads},
                {"rms_norm_eps", config.norm_epsilon},
                {"rope_parameters", RopeParameters(config)},
                {"rope_theta", config.rope_theta},
                {"tie_word_embeddings", config.tied_head},
                {"vocab_size", config.vocab}};
  if (!qwen2) {
    shape["attention_bias"] = false;
    shape["mlp_bias"] = false;
  }
  shape["rope_scaling"] = nullptr;
  if (config.rope_scaling.has_value()) {
    shape["rope_scaling"] = RopeParameters(config);
    shape["rope_scaling"].erase("rope_theta");
  }
  return shape;
}

// Defaults if the source does not have these keys: training runs without dropout and knows no
// special tokens.
json Gpt2Habits() {
  return {{"attn_pdrop", 0.0},       {"embd_pdrop", 0.0},       {"resid_pdrop", 0.0},
          {"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"use_cache", true}};
}
json LlamaHabits() {
  return {{"attention_dropout", 0.0},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"use_cache", true}};
}

}  // namespace

std::string FormatHfConfig(const ModelConfig& config, const HfConfigOptions& options) {
  TAKT_CHECK(config.family != Family::kEmulated);
  const bool gpt2 = config.family == Family::kGpt2;
  json object = gpt2 ? Gpt2Habits() : LlamaHabits();
  object.update(ObjectIn(options.source));
  object.update(gpt2 ? Gpt2Shape(config) : LlamaShape(config));
  object.erase("dtype");
  object["torch_dtype"] = std::string(options.torch_dtype);
  return object.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace) + "\n";
}

std::string FormatGenerationConfig(std::string_view config_text) {
  const json config = ObjectIn(config_text);
  json object = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (const auto it = config.find(key); it != config.end() && !it->is_null()) object[key] = *it;
  }
  return object.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace) + "\n";
}

std::string TorchDtypeIn(std::string_view config_text) {
  const json config = ObjectIn(config_text);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (const auto it = config.find(key); it != config.end() && it->is_string()) return *it;
  }
  return "";
}

}  // namespace takt::model
