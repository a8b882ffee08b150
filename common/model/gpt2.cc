// SPDX-License-Identifier: Apache-2.0
#include "common/model/gpt2.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/layer_parts.h"

namespace takt::model {
namespace {

constexpr char kTokenTable[] = "transformer.wte.weight";

Layer Embedding(const ModelConfig& config, int microbatch) {
  Layer layer{.kind = LayerKind::kEmbedding};
  layer.parameters = {Normal(kTokenTable, {config.vocab, config.hidden}, config.initializer_range),
                      Normal("transformer.wpe.weight", {config.positions, config.hidden},
                             config.initializer_range)};
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
  return layer;
}

// A product of [1,m] and [m,n] takes 2mn: QKV 6CC, projection 2CC, MLP 4C*inner.
double LinearFlops(const ModelConfig& config) {
  const double c = config.hidden;
  return 8 * c * c + 4 * c * config.inner;
}

// Kept per token in f32: both norms' outputs, q k v, attention's output, the residual between
// attention and MLP (8 C), the MLP's inner values before and after gelu, one log-sum-exp per head,
// mean and rstd of both norms.
std::int64_t BlockStashBytes(const ModelConfig& config, int microbatch) {
  const std::int64_t per_token = 7LL * config.hidden + 2LL * config.inner + config.heads + 4;
  return kFloatBytes * Tokens(config, microbatch) * per_token;
}

Layer Block(const ModelConfig& config, int microbatch, int block) {
  const std::int64_t c = config.hidden;
  const double stddev = config.initializer_range;
  // GPT-2 scales what is added to the residual stream by the number of additions, two a block.
  const double residual_stddev = stddev / std::sqrt(2.0 * config.layers);
  const std::string prefix = absl::StrCat("transformer.h.", block, ".");
  Layer layer{.kind = LayerKind::kGpt2Block, .block = block};
  layer.parameters = {
      Ones(prefix + "ln_1.weight", c),
      Zeros(prefix + "ln_1.bias", c),
      Normal(prefix + "attn.c_attn.weight", {c, 3 * c}, stddev),
      Zeros(prefix + "attn.c_attn.bias", 3 * c),
      Normal(prefix + "attn.c_proj.weight", {c, c}, residual_stddev),
      Zeros(prefix + "attn.c_proj.bias", c),
      Ones(prefix + "ln_2.weight", c),
      Zeros(prefix + "ln_2.bias", c),
      Normal(prefix + "mlp.c_fc.weight", {c, config.inner}, stddev),
      Zeros(prefix + "mlp.c_fc.bias", config.inner),
      Normal(prefix + "mlp.c_proj.weight", {config.inner, c}, residual_stddev),
      Zeros(prefix + "mlp.c_proj.bias", c),
  };
  layer.cost = CostOf(static_cast<double>(Tokens(config, microbatch)), LinearFlops(config),
                      AttentionFlops(config));
  layer.cost.stash_bytes = BlockStashBytes(config, microbatch);
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
  return layer;
}

// Final norm, logits, loss. Stash: the norm's output, its mean and rstd, and the logits.
Layer Head(const ModelConfig& config, int microbatch) {
  Layer layer{.kind = LayerKind::kGpt2Head};
  layer.parameters = {Ones("transformer.ln_f.weight", config.hidden),
                      Zeros("transformer.ln_f.bias", config.hidden)};
  layer.tied_parameters = {kTokenTable};
  const std::int64_t tokens = Tokens(config, microbatch);
  layer.cost = CostOf(static_cast<double>(tokens), 2.0 * config.hidden * config.vocab, 0);
  layer.cost.stash_bytes = kFloatBytes * tokens * (config.hidden + 2LL + config.vocab);
  return layer;
}

}  // namespace

std::vector<Layer> Gpt2Layers(const ModelConfig& config, int microbatch) {
  std::vector<Layer> layers;
  layers.reserve(config.layers + 2);
  layers.push_back(Embedding(config, microbatch));
  for (int block = 0; block < config.layers; ++block)
    layers.push_back(Block(config, microbatch, block));
  layers.push_back(Head(config, microbatch));
  return layers;
}

}  // namespace takt::model
