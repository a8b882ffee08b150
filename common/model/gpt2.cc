// SPDX-License-Identifier: Apache-2.0
#include "common/model/gpt2.h"

#include <algorithm>
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

// By Gpt2BlockStash.
std::vector<StashTensor> BlockTensors(const ModelConfig& config, std::int64_t rows,
                                      const Precisions& precisions) {
  const auto [products, activations] = precisions;
  const std::int64_t c = config.hidden;
  std::vector<StashTensor> stash;
  AddNorm(stash, Rowwise(rows, c, products), rows, c, 2);
  stash.push_back(Product(rows, 3 * c, activations));
  stash.push_back(Product(rows, c, activations));
  stash.push_back(Product(rows, config.heads));
  stash.push_back(Product(rows, c));
  AddNorm(stash, Rowwise(rows, c, products), rows, c, 2);
  stash.push_back(Product(rows, config.inner, activations));
  stash.push_back(Rowwise(rows, config.inner, products));
  return stash;
}

Layer Block(const ModelConfig& config, int microbatch, const Precisions& precisions, int block) {
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
  const std::int64_t rows = Tokens(config, microbatch);
  const auto tokens = static_cast<double>(rows);
  layer.cost = CostOf(tokens, LinearFlops(config), AttentionFlops(config));
  // All but the last product, whose output nobody reads.
  layer.cost.recompute_flops =
      layer.cost.forward_flops - tokens * 2 * static_cast<double>(c) * config.inner;
  layer.stash = BlockTensors(config, rows, precisions);
  // The gradients of gelu's output or input and of q k v; that of what a norm or attention gives.
  const std::int64_t inner_bytes = Bytes(precisions.activations, rows * config.inner);
  const std::int64_t qkv_bytes = Bytes(precisions.activations, rows * 3 * c);
  layer.scratch = {
      std::max(inner_bytes, Gpt2QkvGradOffset(config, rows, precisions.activations) + qkv_bytes),
      Bytes(precisions.activations, rows * c)};
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
  return layer;
}

// Final norm, logits, loss.
Layer Head(const ModelConfig& config, int microbatch, Precision activations) {
  Layer layer{.kind = LayerKind::kGpt2Head};
  layer.parameters = {Ones("transformer.ln_f.weight", config.hidden),
                      Zeros("transformer.ln_f.bias", config.hidden)};
  layer.tied_parameters = {kTokenTable};
  const std::int64_t tokens = Tokens(config, microbatch);
  layer.cost = CostOf(static_cast<double>(tokens), 2.0 * config.hidden * config.vocab, 0);
  layer.stash = HeadTensors(config, tokens, 2, activations);
  layer.scratch.narrow_bytes = Bytes(activations, tokens * config.hidden);
  return layer;
}

}  // namespace

std::int64_t Gpt2QkvGradOffset(const ModelConfig& config, std::int64_t rows,
                               Precision activations) {
  if (activations == Precision::kF32) return 0;
  Regions before;
  before.Add(Bytes(activations, rows * config.inner));
  return before.size();
}

std::vector<Layer> Gpt2Layers(const ModelConfig& config, int microbatch,
                              const Precisions& precisions) {
  std::vector<Layer> layers;
  layers.reserve(config.layers + 2);
  layers.push_back(Embedding(config, microbatch));
  for (int block = 0; block < config.layers; ++block)
    layers.push_back(Block(config, microbatch, precisions, block));
  layers.push_back(Head(config, microbatch, precisions.activations));
  return layers;
}

}  // namespace takt::model
