// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config_text.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/model/hf_config.h"
#include "nlohmann/json.hpp"

namespace takt::model {
namespace {

using json = nlohmann::ordered_json;

// Parses an object. It is empty if the text is not an object.
json ObjectIn(std::string_view text) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? std::move(object) : json::object();
}

std::string Dump(const json& object) {
  return object.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace) + "\n";
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

struct FamilyNames {
  const char *model_type, *architecture;
};

FamilyNames NamesOf(Family family) {
  switch (family) {
    case Family::kQwen2:
      return {"qwen2", "Qwen2ForCausalLM"};
    case Family::kQwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    case Family::kMistral:
      return {"mistral", "MistralForCausalLM"};
    case Family::kMixtral:
      return {"mixtral", "MixtralForCausalLM"};
    case Family::kQwen3Moe:
      return {"qwen3_moe", "Qwen3MoeForCausalLM"};
    case Family::kGpt2:
    case Family::kLlama:
    case Family::kEmulated:
      break;
  }
  return {"llama", "LlamaForCausalLM"};
}

// Adds the keys of experts. A weight of the auxiliary loss without effect stays as the source has
// it.
void AddExpertKeys(const ModelConfig& config, json& shape) {
  const Mixture& mixture = *config.mixture;
  const bool mixtral = config.family == Family::kMixtral;
  shape[mixtral ? "num_local_experts" : "num_experts"] = mixture.experts;
  shape["num_experts_per_tok"] = mixture.chosen;
  shape["output_router_logits"] = mixture.auxiliary_loss > 0;
  if (mixture.auxiliary_loss > 0) shape["router_aux_loss_coef"] = mixture.auxiliary_loss;
  if (mixtral) {
    shape["router_jitter_noise"] = 0.0;
    shape["sliding_window"] = nullptr;
    return;
  }
  shape["moe_intermediate_size"] = mixture.inner;
  shape["norm_topk_prob"] = mixture.normalised;
  shape["decoder_sparse_step"] = 1;
  shape["mlp_only_layers"] = mixture.dense_blocks;
}

// Adds the keys that only some of the families have.
void AddOwnKeys(const ModelConfig& config, json& shape) {
  if (config.family == Family::kLlama || NormalisesHeads(config.family))
    shape["attention_bias"] = false;
  if (config.family == Family::kLlama) shape["mlp_bias"] = false;
  if (NormalisesHeads(config.family)) shape["use_sliding_window"] = false;
  if (config.mixture.has_value()) AddExpertKeys(config, shape);
  if (config.family == Family::kMistral) {
    const std::optional<int>& window = config.attention_window;
    shape["sliding_window"] = window.has_value() ? json(*window) : json(nullptr);
  }
}

json LlamaShape(const ModelConfig& config) {
  const auto [model_type, architecture] = NamesOf(config.family);
  // transformers would load sigmoid scores as the softmax that its family has. It knows no model of
  // this name.
  const bool own = config.mixture.has_value() && config.mixture->scores == RouterScores::kSigmoid;
  json shape = {{"architectures", {std::string(own ? "Takt" : "") + architecture}},
                {"model_type", std::string(own ? "takt_" : "") + model_type},
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
  AddOwnKeys(config, shape);
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
  return Dump(object);
}

std::string WithHeadSize(std::string_view config_text) {
  json object = ObjectIn(config_text);
  const auto head_size = object.find("head_dim");
  if (head_size == object.end() || *head_size != 0) return std::string(config_text);
  const absl::StatusOr<ModelConfig> config = ParseHfConfig(config_text, "config.json");
  if (!config.ok()) return std::string(config_text);
  *head_size = config->head_size;
  return Dump(object);
}

std::string FormatGenerationConfig(std::string_view config_text) {
  const json config = ObjectIn(config_text);
  json object = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (const auto it = config.find(key); it != config.end() && !it->is_null()) object[key] = *it;
  }
  return Dump(object);
}

std::string TorchDtypeIn(std::string_view config_text) {
  const json config = ObjectIn(config_text);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (const auto it = config.find(key); it != config.end() && it->is_string()) return *it;
  }
  return "";
}

}  // namespace takt::model
