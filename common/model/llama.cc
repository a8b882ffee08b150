// SPDX-License-Identifier: Apache-2.0
#include "common/model/llama.h"

#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/layer_parts.h"

namespace takt::model {
namespace {

constexpr char kTokenTable[] = "model.embed_tokens.weight";

std::int64_t QueryWidth(const ModelConfig& config) {
  return std::int64_t{config.heads} * config.head_size;
}
std::int64_t KeyWidth(const ModelConfig& config) {
  return std::int64_t{config.kv_heads} * config.head_size;
}

Layer Embedding(const ModelConfig& config, int microbatch) {
  return {
      .kind = LayerKind::kEmbedding,
      .parameters = {Normal(kTokenTable, {config.vocab, config.hidden}, config.initializer_range)},
      .cost = {.output_bytes = ActivationBytes(config, microbatch)}};
}

// Products with weights, one token forward: q and o, k and v, the three of the MLP.
double LinearFlops(const ModelConfig& config) {
  const auto c = static_cast<double>(config.hidden);
  return 4 * c * static_cast<double>(QueryWidth(config) + KeyWidth(config)) + 6 * c * config.inner;
}

// Kept per token in f32: both norms' outputs and the residual between attention and MLP (3 C), q
// and attention's output, k and v, the MLP's gate, up and product, one log-sum-exp per head, both
// norms' rstd.
std::int64_t BlockStashBytes(const ModelConfig& config, int microbatch) {
  const std::int64_t per_token = 3LL * config.hidden + 2 * QueryWidth(config) +
                                 2 * KeyWidth(config) + 3LL * config.inner + config.heads + 2;
  return kFloatBytes * Tokens(config, microbatch) * per_token;
}

void AddProjection(std::vector<Parameter>& to, const std::string& name,
                   std::vector<std::int64_t> shape, const ModelConfig& config, bool bias) {
  const std::int64_t out = shape.front();
  to.push_back(Normal(name + ".weight", std::move(shape), config.initializer_range));
  if (bias) to.push_back(Zeros(name + ".bias", out));
}

Layer Block(const ModelConfig& config, int microbatch, int block) {
  const std::int64_t c = config.hidden;
  const bool bias = config.family == Family::kQwen2;
  const std::string prefix = absl::StrCat("model.layers.", block, ".");
  Layer layer{.kind = LayerKind::kLlamaBlock, .block = block};
  std::vector<Parameter>& p = layer.parameters;
  p.push_back(Ones(prefix + "input_layernorm.weight", c));
  AddProjection(p, prefix + "self_attn.q_proj", {QueryWidth(config), c}, config, bias);
  AddProjection(p, prefix + "self_attn.k_proj", {KeyWidth(config), c}, config, bias);
  AddProjection(p, prefix + "self_attn.v_proj", {KeyWidth(config), c}, config, bias);
  AddProjection(p, prefix + "self_attn.o_proj", {c, QueryWidth(config)}, config, false);
  p.push_back(Ones(prefix + "post_attention_layernorm.weight", c));
  AddProjection(p, prefix + "mlp.gate_proj", {config.inner, c}, config, false);
  AddProjection(p, prefix + "mlp.up_proj", {config.inner, c}, config, false);
  AddProjection(p, prefix + "mlp.down_proj", {c, config.inner}, config, false);
  layer.cost = CostOf(static_cast<double>(Tokens(config, microbatch)), LinearFlops(config),
                      AttentionFlops(config));
  layer.cost.stash_bytes = BlockStashBytes(config, microbatch);
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
  return layer;
}

// Final norm, logits, loss. Stash: the norm's output, its rstd, and the logits.
Layer Head(const ModelConfig& config, int microbatch) {
  Layer layer{.kind = LayerKind::kLlamaHead,
              .parameters = {Ones("model.norm.weight", config.hidden)}};
  if (config.tied_head) {
    layer.tied_parameters = {kTokenTable};
  } else {
    layer.parameters.push_back(
        Normal("lm_head.weight", {config.vocab, config.hidden}, config.initializer_range));
  }
  const std::int64_t tokens = Tokens(config, microbatch);
  layer.cost = CostOf(static_cast<double>(tokens), 2.0 * config.hidden * config.vocab, 0);
  layer.cost.stash_bytes = kFloatBytes * tokens * (config.hidden + 1LL + config.vocab);
  return layer;
}

double Scaled(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = scaling.original_positions / wavelength;
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double share =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - share) * frequency / scaling.factor + share * frequency;
}

}  // namespace

std::vector<Layer> LlamaLayers(const ModelConfig& config, int microbatch) {
  std::vector<Layer> layers;
  layers.reserve(config.layers + 2);
  layers.push_back(Embedding(config, microbatch));
  for (int block = 0; block < config.layers; ++block)
    layers.push_back(Block(config, microbatch, block));
  layers.push_back(Head(config, microbatch));
  return layers;
}

std::vector<double> RotaryFrequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int i = 0; i < config.head_size / 2; ++i) {
    const double frequency = std::pow(config.rope_theta, -2.0 * i / config.head_size);
    frequencies.push_back(config.rope_scaling.has_value() ? Scaled(frequency, *config.rope_scaling)
                                                          : frequency);
  }
  return frequencies;
}

}  // namespace takt::model
