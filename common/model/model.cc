// SPDX-License-Identifier: Apache-2.0
#include "common/model/model.h"

#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/f32_range.h"
#include "common/base/field_rules.h"
#include "common/model/context_layers.h"
#include "common/model/gpt2.h"
#include "common/model/layer_parts.h"
#include "common/model/llama.h"
#include "common/model/mixture.h"
#include "common/model/shared_mixture.h"
#include "common/model/split_layers.h"
#include "common/model/vocabulary.h"

namespace takt::model {
namespace {

// Far beyond any model, and small enough that no product of sizes overflows 64 bits.
constexpr int kMaxLayers = 4096;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxRows = 1 << 24;  // vocabulary, positions
constexpr int kMaxHeadSize = 1 << 12;

void CheckMilliseconds(FieldRules& rules, const char* field, double seconds) {
  constexpr double kMostSeconds = 3600;
  rules.Check(seconds >= 0 && seconds <= kMostSeconds,
              {.field = field,
               .value = absl::StrCat(seconds * 1e3),
               .rule = "must be a time between 0 and 3600000, which is an hour",
               .fix = "give milliseconds"});
}

std::string Divisors(int hidden) {
  std::string text;
  int listed = 0;
  for (int d = 1; d <= hidden && listed < 12; ++d) {
    if (hidden % d == 0) {
      absl::StrAppend(&text, listed == 0 ? "" : ", ", d);
      ++listed;
    }
  }
  return text;
}

void CheckNumber(FieldRules& rules, const char* field, double value, bool holds, const char* rule,
                 const char* fix) {
  rules.Check(IsFiniteInF32(value) && holds, {.field = field,
                                              .value = absl::StrCat(value),
                                              .rule = WithF32Bound(rule, value),
                                              .fix = fix});
}

void CheckGpt2(const ModelConfig& config, FieldRules& rules) {
  rules.Check(config.kv_heads == config.heads, {.field = "model.kv_heads",
                                                .value = absl::StrCat(config.kv_heads),
                                                .rule = "gpt2 has as many key heads as heads",
                                                .fix = "remove it"});
  rules.Check(config.head_size == 0 || config.head_size * config.heads == config.hidden,
              {.field = "model.head_size",
               .value = absl::StrCat(config.head_size),
               .rule = "gpt2's heads share model.hidden evenly",
               .fix = "remove it"});
  rules.Check(config.tied_head, {.field = "model.tied_head",
                                 .value = "false",
                                 .rule = "gpt2's head is its token embedding",
                                 .fix = "remove it"});
}

void CheckWindow(const ModelConfig& config, FieldRules& rules) {
  if (!config.attention_window.has_value()) return;
  const int window = *config.attention_window;
  const char* const field = "model.attention_window";
  const std::string value = absl::StrCat(window);
  if (!rules.Check(config.family == Family::kMistral, {.field = field,
                                                       .value = value,
                                                       .rule = "only mistral has a window",
                                                       .fix = "remove it"})) {
    return;
  }
  // A context may be shorter than the window: a model is often trained on less than it can read.
  rules.Check(
      window >= 1 && window <= config.positions,
      {.field = field,
       .value = value,
       .rule = absl::StrCat("must be between 1 and the model's positions (", config.positions, ")"),
       .fix = "remove it, and a token sees all tokens before it"});
}

void CheckRopeScaling(const RopeScaling& scaling, FieldRules& rules) {
  CheckNumber(rules, "model.rope_scaling.factor", scaling.factor, scaling.factor >= 1,
              "must be a finite number, 1 or more", "Llama 3.1 has 8");
  CheckNumber(rules, "model.rope_scaling.low_freq_factor", scaling.low_freq_factor,
              scaling.low_freq_factor > 0, "must be a finite number above 0", "Llama 3.1 has 1");
  CheckNumber(rules, "model.rope_scaling.high_freq_factor", scaling.high_freq_factor,
              scaling.high_freq_factor > scaling.low_freq_factor,
              "must be a finite number above low_freq_factor", "Llama 3.1 has 4");
  rules.Between("model.rope_scaling.original_positions", scaling.original_positions, 1, kMaxRows);
}

void CheckLlama(const ModelConfig& config, FieldRules& rules) {
  rules.Check(config.kv_heads >= 1 && config.heads % config.kv_heads == 0,
              {.field = "model.kv_heads",
               .value = absl::StrCat(config.kv_heads),
               .rule = absl::StrCat("must divide model.heads (", config.heads, ")"),
               .fix = absl::StrCat("use one of ", Divisors(config.heads))});
  rules.Check(config.head_size % 2 == 0, {.field = "model.head_size",
                                          .value = absl::StrCat(config.head_size),
                                          .rule = "must be even: rotary positions turn pairs",
                                          .fix = "change it, or model.hidden or model.heads"});
  CheckNumber(rules, "model.rope_theta", config.rope_theta, config.rope_theta > 1,
              "must be a finite number above 1", "use 10000");
  if (config.rope_scaling.has_value()) CheckRopeScaling(*config.rope_scaling, rules);
}

// Checks what all families but the emulated one have in common.
void CheckTransformer(const ModelConfig& config, FieldRules& rules) {
  rules.Between("model.hidden", config.hidden, 1, kMaxWidth);
  rules.Between("model.heads", config.heads, 1, kMaxWidth);
  rules.Between("model.context", config.context, 1, kMaxRows);
  rules.Between("model.vocab", config.vocab, 1, kMaxRows);
  if (!rules.ok()) return;
  rules.Between("model.inner", config.inner, 1, kMaxWidth);
  if (config.head_size == 0) {  // BuildModel would have filled it in
    rules.Check(false, {.field = "model.heads",
                        .value = absl::StrCat(config.heads),
                        .rule = absl::StrCat("must divide model.hidden (", config.hidden, ")"),
                        .fix = absl::StrCat("use one of ", Divisors(config.hidden))});
  } else {
    rules.Between("model.head_size", config.head_size, 1, kMaxHeadSize);
  }
  rules.Check(
      config.positions >= config.context && config.positions <= kMaxRows,
      {.field = "model.context",
       .value = absl::StrCat(config.context),
       .rule = absl::StrCat("must be at most the model's positions (", config.positions, ")"),
       .fix = "train on shorter sequences"});
  CheckNumber(rules, "model.norm_epsilon", config.norm_epsilon, config.norm_epsilon > 0,
              "must be a finite number above 0", "use 1e-5");
  CheckNumber(rules, "model.initializer_range", config.initializer_range,
              config.initializer_range >= 0, "must be a finite number, 0 or more", "use 0.02");
  if (config.family == Family::kGpt2) {
    CheckGpt2(config, rules);
  } else {
    CheckLlama(config, rules);
  }
}

void CheckEmulated(const ModelConfig& config, FieldRules& rules) {
  CheckMilliseconds(rules, "model.forward_ms", config.forward_seconds);
  CheckMilliseconds(rules, "model.input_grad_ms", config.input_grad_seconds);
  CheckMilliseconds(rules, "model.weight_grad_ms", config.weight_grad_seconds);
  constexpr std::int64_t kMaxMessage = std::int64_t{1} << 32;
  rules.Check(config.activation_bytes >= 1 && config.activation_bytes <= kMaxMessage,
              {.field = "model.activation_bytes",
               .value = absl::StrCat(config.activation_bytes),
               .rule = absl::StrCat("must be between 1 and ", kMaxMessage),
               .fix = "give the size of the message between two stages"});
  for (const auto& [field, bytes] : {std::pair("model.parameter_bytes", config.parameter_bytes),
                                     {"model.collective_bytes", config.collective_bytes}}) {
    rules.Check(bytes >= 0 && bytes <= kMaxMessage && bytes % 4 == 0,
                {.field = field,
                 .value = absl::StrCat(bytes),
                 .rule = absl::StrCat("must be a multiple of 4 between 0 and ", kMaxMessage),
                 .fix = "give the bytes of f32 numbers, or leave it out"});
  }
}

// Fills in a head size that was left out: an even share of the width.
ModelConfig Complete(ModelConfig config) {
  if (config.head_size == 0 && config.heads > 0 && config.hidden % config.heads == 0) {
    config.head_size = config.hidden / config.heads;
  }
  return config;
}

// Checks that so many ranks can share the experts. Layers that ranks split have none (CheckShare).
std::vector<FieldError> CheckExperts(const ModelConfig& config, const ExpertShare& share) {
  FieldRules rules;
  if (!share.shares()) return rules.Take();
  const int experts = config.mixture.has_value() ? config.mixture->experts : 0;
  rules.Check(
      experts > 0 && experts % share.size == 0 && share.index >= 0 && share.index < share.size,
      {.field = "parallelism.expert",
       .value = absl::StrCat(share.size),
       .rule = absl::StrCat("must divide model.experts.count (", experts, ")"),
       .fix = "correct one of them"});
  return rules.Take();
}

Layer EmulatedLayer(const ModelConfig& config, int block, int tensor) {
  Layer layer{.kind = LayerKind::kEmulated,
              .block = block,
              .cost = {.forward_seconds = config.forward_seconds,
                       .input_grad_seconds = config.input_grad_seconds,
                       .weight_grad_seconds = config.weight_grad_seconds,
                       .output_bytes = config.activation_bytes}};
  if (config.parameter_bytes > 0) {
    layer.parameters.push_back(
        {.name = absl::StrCat("layers.", block, ".weight"), .shape = {config.parameter_bytes / 4}});
  }
  if (tensor == 1 || config.collective_bytes == 0) return layer;
  const auto meeting = [&](PartKind kind) {
    return Part{.kind = kind,
                .group = PartGroup::kTensor,
                .bytes = config.collective_bytes / tensor * (tensor - 1)};
  };
  layer.parts.forward = {meeting(PartKind::kGather), Part{}, meeting(PartKind::kScatter)};
  layer.parts.input_grad = layer.parts.forward;
  return layer;
}

// Marks the matrices that products read as they are stored: those whose rows, and whose pieces, are
// whole vectors. The last rows of a table by words are filled up with zeros. Experts are left out,
// because their kernels read packed matrices.
void KeepMatricesRounded(Model& model) {
  if (!model.precisions.ReadsWeightsAsStored()) return;
  std::set<std::string_view> tied;  // the head multiplies by these
  for (const Layer& layer : model.layers)
    tied.insert(layer.tied_parameters.begin(), layer.tied_parameters.end());
  for (Layer& layer : model.layers) {
    for (Parameter& parameter : layer.parameters) {
      const bool is_factor = layer.MultipliesBy(parameter) || tied.contains(parameter.name);
      if (!is_factor || parameter.expert >= 0) continue;
      const std::int64_t rows = parameter.shape[0] / parameter.split.count;
      parameter.kept_rounded =
          IsWholeVectors(parameter.shape[1]) && (parameter.by_word || IsWholeVectors(rows));
      TAKT_CHECK(parameter.kept_rounded || !parameter.adjoins_next);
    }
  }
}

}  // namespace

std::vector<const Parameter*> Model::AllParameters() const {
  std::vector<const Parameter*> all;
  for (const Layer& layer : layers) {
    for (const Parameter& parameter : layer.parameters) all.push_back(&parameter);
  }
  return all;
}

std::int64_t Model::num_parameters() const {
  std::int64_t elements = 0;
  for (const Parameter* parameter : AllParameters()) elements += WholeElements(*parameter);
  return elements;
}

const Parameter* Model::Find(std::string_view name) const {
  for (const Parameter* parameter : AllParameters()) {
    if (parameter->name == name) return parameter;
  }
  return nullptr;
}

double Model::FlopsPerMicrobatch() const {
  double flops = 0;
  if (config.family == Family::kEmulated) return flops;
  if (tensor.splits() || context_ranks > 1)
    return BuildModel(config, microbatch, precisions)->FlopsPerMicrobatch();
  for (const Layer& layer : layers) flops += layer.cost.Work();
  return flops;
}

std::vector<FieldError> CheckConfig(const ModelConfig& given) {
  const ModelConfig config = Complete(given);
  FieldRules rules;
  rules.Between("model.layers", config.layers, 1, kMaxLayers);
  if (config.family == Family::kEmulated) {
    CheckEmulated(config, rules);
  } else {
    CheckTransformer(config, rules);
  }
  CheckWindow(config, rules);
  CheckMixture(config, rules);
  return rules.Take();
}

absl::StatusOr<Model> BuildModel(const ModelConfig& config, int microbatch,
                                 const Precisions& precisions, const TensorShare& tensor,
                                 int context_ranks, const ExpertShare& experts) {
  TAKT_CHECK(microbatch >= 1);
  if (std::vector<FieldError> errors = CheckConfig(config); !errors.empty()) {
    return InvalidFields(std::move(errors));
  }
  if (std::vector<FieldError> errors = CheckExperts(config, experts); !errors.empty()) {
    return InvalidFields(std::move(errors));
  }
  if (auto errors = CheckContext(config, tensor, context_ranks); !errors.empty())
    return InvalidFields(std::move(errors));
  Model model{.config = Complete(config),
              .microbatch = microbatch,
              .precisions = precisions,
              .tensor = tensor,
              .context_ranks = context_ranks,
              .experts = experts};
  ModelConfig here = model.config;  // as if sequences had only this rank's tokens
  here.context = static_cast<int>(model.context_here());
  Precisions whole = precisions;  // of layers that nobody splits
  if (tensor.splits()) whole.residual = Precision::kF32;
  switch (config.family) {
    case Family::kGpt2:
      model.layers = Gpt2Layers(here, microbatch, whole);
      break;
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
    case Family::kMistral:
    case Family::kMixtral:
    case Family::kQwen3Moe:
      model.layers = LlamaLayers(here, microbatch, whole);
      break;
    case Family::kEmulated:
      for (int block = 0; block < config.layers; ++block) {
        model.layers.push_back(EmulatedLayer(config, block, tensor.size));
      }
      return model;
  }
  if (precisions.residual == Precision::kBf16) {
    for (Layer& layer : model.layers) layer.cost.output_bytes /= 2;
  }
  if (context_ranks > 1) ShareSequences(model);
  if (tensor.size > 1 || tensor.splits()) {
    if (auto errors = CheckShare(model.config, microbatch, tensor); !errors.empty())
      return InvalidFields(std::move(errors));
    SplitLayers(model);
  } else if (experts.shares()) {
    ShareExperts(model);
  }
  KeepMatricesRounded(model);
  return model;
}

std::int64_t LogitsStride(std::int64_t words, Precision activations) {
  constexpr std::int64_t kUnit = 64;
  if (activations == Precision::kF32) return words;
  return (words + kUnit - 1) / kUnit * kUnit;
}

int NumNormEntries(const Parameter& parameter) {
  return parameter.by_word ? NumVocabularyBlocks(parameter.shape[0]) : parameter.split.pieces;
}

}  // namespace takt::model
