// SPDX-License-Identifier: Apache-2.0
#include "common/model/gpt2.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace takt::model {
namespace {

constexpr std::int64_t kFloatBytes = 4;
constexpr char kTokenTable[] = "transformer.wte.weight";

Parameter Normal(std::string name, std::vector<std::int64_t> shape, double stddev) {
  return {
      .name = std::move(name), .shape = std::move(shape), .init = Init::kNormal, .stddev = stddev};
}
Parameter Zeros(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}};
}
Parameter Ones(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = Init::kOnes};
}

std::int64_t ActivationBytes(const ModelConfig& config, int microbatch) {
  return kFloatBytes * microbatch * config.context * config.hidden;
}

Layer Embedding(const ModelConfig& config, int microbatch) {
  Layer layer{.kind = LayerKind::kEmbedding};
  layer.parameters = {Normal(kTokenTable, {config.vocab, config.hidden}, config.initializer_range),
                      Normal("transformer.wpe.weight", {config.positions, config.hidden},
                             config.initializer_range)};
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
  return layer;
}

// Kept per token in f32: both norms' outputs, q k v, attention's output, the residual between
// attention and MLP (8 C), the MLP's inner values before and after gelu, one log-sum-exp per head,
// mean and rstd of both norms.
std::int64_t BlockStashBytes(const ModelConfig& config, int microbatch) {
  const std::int64_t per_token = 7LL * config.hidden + 2LL * config.inner + config.heads + 4;
  return kFloatBytes * microbatch * config.context * per_token;
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
  const double tokens = static_cast<double>(microbatch) * config.context;
  const double linear = tokens * Gpt2BlockLinearFlops(config);
  const double attention = tokens * Gpt2BlockAttentionFlops(config);
  layer.cost = {.forward_flops = linear + attention,
                .input_grad_flops = linear + 2 * attention,
                .weight_grad_flops = linear,
                .stash_bytes = BlockStashBytes(config, microbatch),
                .output_bytes = ActivationBytes(config, microbatch)};
  return layer;
}

// Final norm, logits, loss. Stash: the norm's output, its mean and rstd, and the logits.
Layer Head(const ModelConfig& config, int microbatch) {
  Layer layer{.kind = LayerKind::kGpt2Head};
  layer.parameters = {Ones("transformer.ln_f.weight", config.hidden),
                      Zeros("transformer.ln_f.bias", config.hidden)};
  layer.tied_parameters = {kTokenTable};
  const std::int64_t tokens = static_cast<std::int64_t>(microbatch) * config.context;
  const double flops = static_cast<double>(tokens) * Gpt2HeadFlops(config);
  layer.cost = {.forward_flops = flops,
                .input_grad_flops = flops,
                .weight_grad_flops = flops,
                .stash_bytes = kFloatBytes * tokens * (config.hidden + 2LL + config.vocab)};
  return layer;
}

}  // namespace

// A product of [1,m] and [m,n] takes 2mn: QKV 6CC, projection 2CC, MLP 4C*inner.
double Gpt2BlockLinearFlops(const ModelConfig& config) {
  const double c = config.hidden;
  return 8 * c * c + 4 * c * config.inner;
}

// QK^T and PV, each 2C per key; position t sees t+1 keys, (T+1)/2 on average.
double Gpt2BlockAttentionFlops(const ModelConfig& config) {
  return 2.0 * (config.context + 1.0) * config.hidden;
}

double Gpt2HeadFlops(const ModelConfig& config) { return 2.0 * config.hidden * config.vocab; }

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
