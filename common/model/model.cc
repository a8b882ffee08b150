// SPDX-License-Identifier: Apache-2.0
#include "common/model/model.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/model/gpt2.h"

namespace takt::model {
namespace {

// Far beyond any model, and small enough that no product of sizes overflows 64 bits.
constexpr int kMaxLayers = 4096;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxRows = 1 << 24;  // vocabulary, positions

class Checker {
 public:
  void Size(const char* field, int value, int max) {
    if (value >= 1 && value <= max) return;
    errors_.push_back({.field = field,
                       .value = value == 0 ? "0 or missing" : absl::StrCat(value),
                       .rule = absl::StrCat("must be between 1 and ", max),
                       .fix = "set it"});
  }
  void Milliseconds(const char* field, double seconds) {
    if (std::isfinite(seconds) && seconds >= 0) return;
    errors_.push_back({.field = field,
                       .value = absl::StrCat(seconds * 1e3),
                       .rule = "must be a finite time, 0 or more",
                       .fix = "give milliseconds"});
  }
  void Rule(bool holds, FieldError error) {
    if (!holds) errors_.push_back(std::move(error));
  }
  bool ok() const { return errors_.empty(); }
  std::vector<FieldError> Take() { return std::move(errors_); }

 private:
  std::vector<FieldError> errors_;
};

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

void CheckGpt2(const ModelConfig& config, Checker& check) {
  check.Size("model.hidden", config.hidden, kMaxWidth);
  check.Size("model.heads", config.heads, kMaxWidth);
  check.Size("model.context", config.context, kMaxRows);
  check.Size("model.vocab", config.vocab, kMaxRows);
  if (!check.ok()) return;
  check.Size("model.inner", config.inner, kMaxWidth);
  check.Rule(config.hidden % config.heads == 0,
             {.field = "model.heads",
              .value = absl::StrCat(config.heads),
              .rule = absl::StrCat("must divide model.hidden (", config.hidden, ")"),
              .fix = absl::StrCat("use one of ", Divisors(config.hidden))});
  check.Rule(config.kv_heads == config.heads, {.field = "model.kv_heads",
                                               .value = absl::StrCat(config.kv_heads),
                                               .rule = "gpt2 has as many key heads as heads"});
  check.Rule(
      config.positions >= config.context && config.positions <= kMaxRows,
      {.field = "model.context",
       .value = absl::StrCat(config.context),
       .rule = absl::StrCat("must be at most the model's positions (", config.positions, ")"),
       .fix = "train on shorter sequences"});
  check.Rule(
      config.tied_head,
      {.field = "model.tied_head", .value = "false", .rule = "gpt2's head is its token embedding"});
  check.Rule(std::isfinite(config.norm_epsilon) && config.norm_epsilon > 0,
             {.field = "model.norm_epsilon",
              .value = absl::StrCat(config.norm_epsilon),
              .rule = "must be a finite number above 0",
              .fix = "use 1e-5"});
  check.Rule(std::isfinite(config.initializer_range) && config.initializer_range >= 0,
             {.field = "model.initializer_range",
              .value = absl::StrCat(config.initializer_range),
              .rule = "must be a finite number, 0 or more",
              .fix = "use 0.02"});
}

void CheckEmulated(const ModelConfig& config, Checker& check) {
  check.Milliseconds("model.forward_ms", config.forward_seconds);
  check.Milliseconds("model.input_grad_ms", config.input_grad_seconds);
  check.Milliseconds("model.weight_grad_ms", config.weight_grad_seconds);
  constexpr std::int64_t kMaxMessage = std::int64_t{1} << 32;
  check.Rule(config.activation_bytes >= 1 && config.activation_bytes <= kMaxMessage,
             {.field = "model.activation_bytes",
              .value = absl::StrCat(config.activation_bytes),
              .rule = absl::StrCat("must be between 1 and ", kMaxMessage),
              .fix = "give the size of the message between two stages"});
}

Layer EmulatedLayer(const ModelConfig& config, int block) {
  return {.kind = LayerKind::kEmulated,
          .block = block,
          .cost = {.forward_seconds = config.forward_seconds,
                   .input_grad_seconds = config.input_grad_seconds,
                   .weight_grad_seconds = config.weight_grad_seconds,
                   .output_bytes = config.activation_bytes}};
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
  for (const Parameter* parameter : AllParameters()) elements += parameter->elements();
  return elements;
}

double Model::FlopsPerToken() const {
  if (config.family == Family::kEmulated) return 0;
  const double block = Gpt2BlockLinearFlops(config) + Gpt2BlockAttentionFlops(config);
  return 3 * (config.layers * block + Gpt2HeadFlops(config));
}

std::vector<FieldError> CheckConfig(const ModelConfig& config) {
  Checker check;
  check.Size("model.layers", config.layers, kMaxLayers);
  switch (config.family) {
    case Family::kGpt2:
      CheckGpt2(config, check);
      break;
    case Family::kEmulated:
      CheckEmulated(config, check);
      break;
    case Family::kLlama:
    case Family::kQwen2:
      check.Rule(false, {.field = "model.family",
                         .value = config.family == Family::kLlama ? "llama" : "qwen2",
                         .rule = "is not supported by this version",
                         .fix = "use gpt2 or emulated"});
      break;
  }
  return check.Take();
}

absl::StatusOr<Model> BuildModel(const ModelConfig& config, int microbatch) {
  TAKT_CHECK(microbatch >= 1);
  if (std::vector<FieldError> errors = CheckConfig(config); !errors.empty()) {
    return InvalidFields(std::move(errors));
  }
  Model model{.config = config, .microbatch = microbatch};
  if (config.family == Family::kGpt2) {
    model.layers = Gpt2Layers(config, microbatch);
  } else {
    for (int block = 0; block < config.layers; ++block) {
      model.layers.push_back(EmulatedLayer(config, block));
    }
  }
  return model;
}

}  // namespace takt::model
