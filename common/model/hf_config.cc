// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::model {
namespace {

using nlohmann::json;

constexpr int kMostBlocks = 1 << 16;  // far more than CheckConfig allows
constexpr char kCorrect[] = "correct it";
constexpr char kOther[] = "take the config.json that belongs to the model";

// Shortens a value so that it can still be recognised in an error.
std::string Shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Returns the rule for a number that does not fit. It names the upper bound only if `value` is
// above it.
std::string WithBound(const char* rule, const json& value) {
  constexpr int kMost = std::numeric_limits<int>::max();
  return value.is_number() && value.get<double>() > kMost ? absl::StrCat(rule, ", at most ", kMost)
                                                          : rule;
}

constexpr std::pair<const char*, Family> kModelTypes[] = {
    {"gpt2", Family::kGpt2},
    {"llama", Family::kLlama},
    {"qwen2", Family::kQwen2},
    {"qwen3", Family::kQwen3},
    {"mistral", Family::kMistral},
    {"mixtral", Family::kMixtral},
    {"qwen3_moe", Family::kQwen3Moe},
    // This one is of checkpoints with sigmoid scores, which transformers must not read as one of
    // the others.
    {"takt_mixtral", Family::kMixtral},
    {"takt_qwen3_moe", Family::kQwen3Moe}};

// Reads keys of one object and collects their errors.
class Reader {
 public:
  Reader(const json& object, std::string_view name) : object_(object), name_(name) {}

  bool IsThere(const char* key) const { return Find(key) != nullptr; }
  bool IsZero(const char* key) const { return IsThere(key) && *Find(key) == 0; }
  int RequiredInt(const char* key) { return Has(key) ? Int(key, 0) : 0; }
  double RequiredNumber(const char* key) { return Has(key) ? Number(key, 0) : 0; }
  int Int(const char* key, int fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number_integer() && *value >= 1 && *value <= std::numeric_limits<int>::max())
      return value->get<int>();
    Fail(key, Shown(*value), WithBound("must be a whole number, 1 or more", *value), kCorrect);
    return 0;
  }
  double Number(const char* key, double fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_number()) return value->get<double>();
    Fail(key, Shown(*value), "must be a number", kCorrect);
    return fallback;
  }
  // Returns the largest of the probabilities.
  double Dropout(std::initializer_list<const char*> keys) {
    double largest = 0;
    for (const char* const key : keys) largest = std::max(largest, Number(key, 0));
    return largest;
  }
  bool Bool(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_boolean()) return value->get<bool>();
    Fail(key, Shown(*value), "must be true or false", kCorrect);
    return fallback;
  }
  // Returns the id that a key names, or the first of its list. The key matters for generation, so
  // that anything else is ignored.
  std::optional<int> FirstId(const char* key) const {
    const json* value = Find(key);
    if (value != nullptr && value->is_array()) value = value->empty() ? nullptr : &value->front();
    const bool fits = value != nullptr && value->is_number_integer() && *value >= 0 &&
                      *value <= std::numeric_limits<int>::max();
    return fits ? std::optional(value->get<int>()) : std::nullopt;
  }
  // Returns the numbers of a list, which is empty if there is none.
  std::vector<int> Ints(const char* key) {
    std::vector<int> numbers;
    const json* values = Find(key);
    if (values == nullptr) return numbers;
    if (!values->is_array()) {
      Fail(key, Shown(*values), "must be a list", kCorrect);
      return numbers;
    }
    for (const json& value : *values) {
      if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int>::max()) {
        Fail(key, Shown(value), WithBound("must be a list of whole numbers, 0 or more", value),
             kCorrect);
        return {};
      }
      numbers.push_back(value.get<int>());
    }
    return numbers;
  }
  Family ModelType() {
    const json* value = Find("model_type");
    for (const auto& [name, family] : kModelTypes) {
      if (value != nullptr && *value == name) return family;
    }
    Fail("model_type", value == nullptr ? "" : Shown(*value),
         "must be one that this version supports: gpt2, llama, qwen2, qwen3, mistral, mixtral or "
         "qwen3_moe",
         "take a model of one of these types");
    return Family::kGpt2;
  }
  // Returns whether the type is one that only we have.
  bool IsOwnType() const {
    const json* value = Find("model_type");
    return value != nullptr && value->is_string() && value->get<std::string>().starts_with("takt_");
  }
  // Returns the object of a key, or null if there is none.
  const json* Object(const char* key) {
    const json* value = Find(key);
    if (value == nullptr || value->is_object()) return value;
    Fail(key, Shown(*value), "must be an object", kCorrect);
    return nullptr;
  }
  // Demands a key, which may be null. It is for keys whose default depends on the family.
  void Present(const char* key) {
    if (!object_.contains(key)) FailMissing(key);
  }
  // Refuses a key, whatever its value.
  void Absent(const char* key) {
    if (const json* value = Find(key)) Fail(key, Shown(*value), "is not supported", "remove it");
  }
  // Adds the errors of a reader of an object inside this one.
  void Append(const char* key, std::vector<FieldError> errors) {
    for (FieldError& error : errors) {
      error.field = absl::StrCat(key, ".", error.field);
      errors_.push_back(std::move(error));
    }
  }
  // Checks a key that changes the arithmetic: it must be absent, or exactly `supported`.
  void Only(const char* key, const json& supported) {
    if (const json* value = Find(key)) CheckSupported(key, *value, supported);
  }
  // Checks a list of what each layer does.
  void EachOnly(const char* key, const json& supported) {
    const json* values = Find(key);
    if (values == nullptr) return;
    if (!values->is_array()) return Fail(key, Shown(*values), "must be a list", kCorrect);
    for (const json& value : *values) {
      if (value != supported) return CheckSupported(key, value, supported);
    }
  }
  void Fail(const char* key, std::string value, std::string rule, std::string fix) {
    errors_.push_back({.field = key,
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = std::move(fix),
                       .where = name_});
  }
  std::vector<FieldError>& errors() { return errors_; }

 private:
  // Hugging Face writes null for "the default".
  const json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool Has(const char* key) {
    if (Find(key) != nullptr) return true;
    FailMissing(key);
    return false;
  }
  void FailMissing(const char* key) { Fail(key, "", "is missing", kOther); }
  void CheckSupported(const char* key, const json& value, const json& supported) {
    if (value == supported) return;
    Fail(key, Shown(value),
         absl::StrCat("is not supported by this version, only ", Shown(supported)),
         "take a model that has it");
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
  config.dropout = reader.Dropout({"attn_pdrop", "embd_pdrop", "resid_pdrop"});
  reader.Only("activation_function", "gelu_new");
  reader.Only("scale_attn_weights", true);
  reader.Only("scale_attn_by_inverse_layer_idx", false);
  reader.Only("reorder_and_upcast_attn", false);
  reader.Only("add_cross_attention", false);
  reader.Only("tie_word_embeddings", true);
  reader.Absent("quantization_config");
  return config;
}

// Reads `rope_scaling`, or `rope_parameters` of newer files, which also holds rope_theta.
void ReadRope(Reader& reader, std::string_view name, ModelConfig& config) {
  config.rope_theta = reader.Number("rope_theta", config.rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* object = reader.Object(key);
    if (object == nullptr) continue;
    Reader rope(*object, name);
    config.rope_theta = rope.Number("rope_theta", config.rope_theta);
    rope.Only("partial_rotary_factor", 1);
    const bool old_key = !object->contains("rope_type") && object->contains("type");
    const json type = object->value(old_key ? "type" : "rope_type", json("default"));
    if (type == "llama3") {
      config.rope_scaling =
          RopeScaling{.factor = rope.RequiredNumber("factor"),
                      .low_freq_factor = rope.RequiredNumber("low_freq_factor"),
                      .high_freq_factor = rope.RequiredNumber("high_freq_factor"),
                      .original_positions = rope.RequiredInt("original_max_position_embeddings")};
    } else if (type != "default") {
      rope.Fail(old_key ? "type" : "rope_type", Shown(type),
                "must be one that this version supports: default or llama3",
                "take a model with one of these");
    }
    reader.Append(key, std::move(rope.errors()));
  }
}

// Reads the window of mistral. One that is longer than all positions hides nothing, and shows that
// some number is wrong.
void ReadWindow(Reader& reader, ModelConfig& config) {
  reader.Present("sliding_window");
  const int window = reader.Int("sliding_window", 0);
  if (window == 0) {  // null, or refused
    reader.EachOnly("layer_types", "full_attention");
    return;
  }
  reader.EachOnly("layer_types", "sliding_attention");
  config.attention_window = window;
  if (window <= config.positions) return;
  reader.Fail(
      "sliding_window", absl::StrCat(window),
      absl::StrCat("must be at most max_position_embeddings (", config.positions, ")"),
      "set it to null, which lets a token see all tokens before it, or correct the other number");
}

// Returns the blocks without experts: those of `mlp_only_layers`, and all but each
// `decoder_sparse_step`-th one.
std::vector<int> ReadDenseBlocks(Reader& reader, int num_blocks) {
  const std::vector<int> listed = reader.Ints("mlp_only_layers");
  const int step = reader.Int("decoder_sparse_step", 1);
  std::vector<int> dense;
  if (step < 1 || num_blocks > kMostBlocks) return dense;  // refused
  for (int block = 0; block < num_blocks; ++block) {
    if ((block + 1) % step != 0 || std::ranges::find(listed, block) != listed.end())
      dense.push_back(block);
  }
  return dense;
}

// Reads the experts of mixtral or qwen3_moe. The auxiliary loss is part of the loss only where the
// router's logits are an output, as in transformers.
Mixture ReadMixture(Reader& reader, const ModelConfig& config) {
  Mixture mixture;
  const bool mixtral = config.family == Family::kMixtral;
  // From version 5 on, transformers writes qwen3_moe's as it does mixtral's.
  const bool renamed = reader.IsThere("num_local_experts") && !reader.IsThere("num_experts");
  mixture.experts = reader.RequiredInt(mixtral || renamed ? "num_local_experts" : "num_experts");
  mixture.chosen = reader.RequiredInt("num_experts_per_tok");
  if (mixture.chosen > mixture.experts && mixture.experts > 0) {
    reader.Fail("num_experts_per_tok", absl::StrCat(mixture.chosen),
                absl::StrCat("must be at most the number of experts (", mixture.experts, ")"),
                "correct one of them");
  }
  if (reader.IsOwnType()) mixture.scores = RouterScores::kSigmoid;
  const double weight = reader.Number("router_aux_loss_coef", 0.001);
  if (reader.Bool("output_router_logits", false)) mixture.auxiliary_loss = weight;
  if (mixtral) {
    mixture.inner = config.inner;
    reader.Only("router_jitter_noise", 0.0);
    reader.Absent("sliding_window");
    return mixture;
  }
  mixture.inner = reader.RequiredInt("moe_intermediate_size");
  mixture.normalised = reader.Bool("norm_topk_prob", false);
  mixture.dense_blocks = ReadDenseBlocks(reader, config.layers);
  return mixture;
}

// Checks the keys by which other families would choose and weigh experts.
void RefuseOtherRouters(Reader& reader) {
  for (const char* const key :
       {"scoring_func", "topk_method", "n_group", "topk_group", "n_shared_experts",
        "shared_expert_intermediate_size", "routed_scaling_factor", "moe_layer_freq"}) {
    reader.Absent(key);
  }
}

ModelConfig ReadLlama(Reader& reader, std::string_view name, Family family) {
  ModelConfig config{.family = family};
  config.layers = reader.RequiredInt("num_hidden_layers");
  config.hidden = reader.RequiredInt("hidden_size");
  config.heads = reader.RequiredInt("num_attention_heads");
  config.kv_heads = reader.Int("num_key_value_heads", config.heads);
  const bool even = config.heads > 0 && config.hidden % config.heads == 0;
  const int share = even ? config.hidden / config.heads : 0;
  // Checkpoints of earlier builds say 0 where the job left it out.
  config.head_size = reader.IsZero("head_dim") ? share : reader.Int("head_dim", share);
  config.inner = reader.RequiredInt("intermediate_size");
  config.vocab = reader.RequiredInt("vocab_size");
  config.positions = reader.RequiredInt("max_position_embeddings");
  config.context = config.positions;
  const bool mixtral = family == Family::kMixtral;
  config.norm_epsilon = reader.Number("rms_norm_eps", mixtral ? 1e-5 : 1e-6);
  config.initializer_range = reader.Number("initializer_range", config.initializer_range);
  config.tied_head = reader.Bool("tie_word_embeddings", false);
  if (mixtral) config.rope_theta = 1e6;
  ReadRope(reader, name, config);
  config.dropout = reader.Dropout({"attention_dropout"});
  reader.Only("hidden_act", "silu");
  reader.Only("attention_bias", family == Family::kQwen2);
  reader.Only("mlp_bias", false);
  reader.Only("pretraining_tp", 1);
  reader.Only("partial_rotary_factor", 1);
  reader.Absent("quantization_config");
  if (HasExperts(family)) {
    config.mixture = ReadMixture(reader, config);
    RefuseOtherRouters(reader);
  }
  if (NormalisesHeads(family) || family == Family::kMistral || HasExperts(family))
    reader.Present("num_key_value_heads");
  if (family == Family::kQwen3) reader.Present("head_dim");
  if (family == Family::kMistral) {
    ReadWindow(reader, config);
  } else {
    reader.Only("use_sliding_window", false);
    reader.EachOnly("layer_types", "full_attention");
  }
  return config;
}

absl::Status NoObject(std::string rule, std::string where) {
  return InvalidField(
      {.field = "config.json", .rule = std::move(rule), .fix = kOther, .where = std::move(where)});
}

// Returns "name:line:column" of a byte, counted from 0.
std::string PlaceOf(std::string_view text, std::size_t byte, std::string_view name) {
  const std::string_view before = text.substr(0, byte);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return absl::StrCat(std::string(name), ":", 1 + std::ranges::count(before, '\n'), ":",
                      1 + before.size() - line_begin);
}

absl::StatusOr<json> ParseObject(std::string_view text, std::string_view name) {
  try {
    json object = json::parse(text);
    if (object.is_object()) return object;
    return NoObject("must be a JSON object", std::string(name));
  } catch (const json::parse_error& error) {
    // The parser counts bytes from 1, and the end of the text as one more.
    const std::size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    const bool ends = byte >= text.size();
    return NoObject(ends ? "must be a JSON object: the file ends before it does"
                         : "must be a JSON object: it is none from here on",
                    PlaceOf(text, byte, name));
  } catch (const json::exception&) {
    return NoObject("must be a JSON object whose numbers fit 64 bits", std::string(name));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, std::string_view name) {
  ASSIGN_OR_RETURN(const json object, ParseObject(text, name));
  Reader reader(object, name);
  const Family family = reader.ModelType();
  if (reader.errors().empty()) {
    ModelConfig config =
        family == Family::kGpt2 ? ReadGpt2(reader) : ReadLlama(reader, name, family);
    config.end_token = reader.FirstId("eos_token_id");
    if (reader.errors().empty()) return config;
  }
  return InvalidFields(std::move(reader.errors()));
}

}  // namespace takt::model
