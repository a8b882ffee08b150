// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::model {
namespace {

using nlohmann::json;

// Enough of a value to recognise it in an error.
std::string Shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Reads keys of one object, collecting what is wrong with them.
class Reader {
 public:
  Reader(const json& object, std::string_view name) : object_(object), name_(name) {}

  int RequiredInt(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) {
      Fail(key, "", "is missing", "take the config.json that belongs to the model");
      return 0;
    }
    return ToInt(key, *value);
  }
  int Int(const char* key, int fallback) {
    const json* value = Find(key);
    return value == nullptr ? fallback : ToInt(key, *value);
  }
  double Number(const char* key, double fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number()) return value->get<double>();
    Fail(key, Shown(*value), "must be a number", "");
    return fallback;
  }
  void RequireModelType(const char* supported) {
    const json* value = Find("model_type");
    if (value != nullptr && *value == supported) return;
    Fail("model_type", value == nullptr ? "" : Shown(*value),
         absl::StrCat("must be one that this version supports: ", supported), "");
  }
  // A key that changes the arithmetic: absent, or exactly `supported`.
  void Only(const char* key, const json& supported) {
    const json* value = Find(key);
    if (value == nullptr || *value == supported) return;
    Fail(key, Shown(*value),
         absl::StrCat("is not supported by this version, only ", Shown(supported)), "");
  }
  std::vector<FieldError>& errors() { return errors_; }

 private:
  // Hugging Face writes null for "the default".
  const json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int ToInt(const char* key, const json& value) {
    if (value.is_number_integer() && value >= 1 && value <= std::numeric_limits<int>::max()) {
      return value.get<int>();
    }
    Fail(key, Shown(value), "must be a whole number, 1 or more", "");
    return 0;
  }
  void Fail(const char* key, std::string value, std::string rule, std::string fix) {
    errors_.push_back({.field = key,
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = std::move(fix),
                       .where = name_});
  }

  const json& object_;
  const std::string name_;
  std::vector<FieldError> errors_;
};

ModelConfig ReadGpt2(Reader& reader) {
  ModelConfig config{.family = Family::kGpt2};
  config.layers = reader.RequiredInt("n_layer");
  config.hidden = reader.RequiredInt("n_embd");
  config.heads = reader.RequiredInt("n_head");
  config.kv_heads = config.heads;
  config.vocab = reader.RequiredInt("vocab_size");
  config.positions = reader.RequiredInt("n_positions");
  config.context = config.positions;
  constexpr int kWidest = std::numeric_limits<int>::max() / 4;
  config.inner = reader.Int("n_inner", config.hidden <= kWidest ? 4 * config.hidden : 0);
  config.norm_epsilon = reader.Number("layer_norm_epsilon", config.norm_epsilon);
  config.initializer_range = reader.Number("initializer_range", config.initializer_range);
  reader.Only("activation_function", "gelu_new");
  reader.Only("scale_attn_weights", true);
  reader.Only("scale_attn_by_inverse_layer_idx", false);
  reader.Only("reorder_and_upcast_attn", false);
  reader.Only("add_cross_attention", false);
  reader.Only("tie_word_embeddings", true);
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, std::string_view name) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return InvalidField({.field = "config.json",
                         .rule = "must be a JSON object",
                         .fix = "take the config.json that belongs to the model",
                         .where = std::string(name)});
  }
  Reader reader(object, name);
  reader.RequireModelType("gpt2");
  if (reader.errors().empty()) {
    const ModelConfig config = ReadGpt2(reader);
    if (reader.errors().empty()) return config;
  }
  return InvalidFields(std::move(reader.errors()));
}

}  // namespace takt::model
