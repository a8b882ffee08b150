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
  layer.parameters = {TableByWord(kTokenTable, config),
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

// Returns the tensors of Gpt2BlockStash.
std::vector<StashTensor> BlockTensors(const ModelConfig& config, std::int64_t rows,
                                      const Precisions& precisions) {
  const Precision products = precisions.products, activations = precisions.activations;
  const std::int64_t c = config.hidden;
  std::vector<StashTensor> stash;
  AddNorm(stash, kNorm1, rows, c, 2, products);
  stash.push_back(Product("qkv", rows, 3 * c, activations));
  stash.push_back(Product("attention", rows, c, activations));
  stash.push_back(Product("logsumexp", rows, config.heads));
  stash.push_back(Product("middle", rows, c, precisions.stream()));
  AddNorm(stash, kNorm2, rows, c, 2, products);
  stash.push_back(Product("inner", rows, config.inner, activations));
  stash.push_back(Rowwise("activated", rows, config.inner, products));
  return stash;
}

// Returns the tensors of Gpt2BlockScratch.
std::vector<ScratchTensor> BlockScratch(const ModelConfig& config, std::int64_t rows,
                                        const Precisions& precisions) {
  using enum ScratchTensor::Start;
  const std::int64_t c = config.hidden;
  const Precision activations = precisions.activations;
  return {{"d_inner", Bytes(activations, rows * config.inner)},
          {"d_qkv", Bytes(activations, rows * 3 * c),
           activations == Precision::kF32 ? kWithLine : kNextLine},
          {"d_norm", Bytes(activations, rows * c)},
          RoundedGradient("d_middle", precisions, rows * c)};
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
      Bias(prefix + "attn.c_attn.bias", 3 * c, precisions.activations),
      Normal(prefix + "attn.c_proj.weight", {c, c}, residual_stddev),
      Bias(prefix + "attn.c_proj.bias", c, precisions.stream()),
      Ones(prefix + "ln_2.weight", c),
      Zeros(prefix + "ln_2.bias", c),
      Normal(prefix + "mlp.c_fc.weight", {c, config.inner}, stddev),
      Bias(prefix + "mlp.c_fc.bias", config.inner, precisions.activations),
      Normal(prefix + "mlp.c_proj.weight", {config.inner, c}, residual_stddev),
      Bias(prefix + "mlp.c_proj.bias", c, precisions.stream()),
  };
  SetBlockCost(layer, config, microbatch, LinearFlops(config), config.inner);
  const std::int64_t rows = Tokens(config, microbatch);
  layer.stash = BlockTensors(config, rows, precisions);
  layer.scratch = BlockScratch(config, rows, precisions);
  return layer;
}

Layer Head(const ModelConfig& config, int microbatch, Precision activations) {
  Layer layer = HeadLayer(LayerKind::kGpt2Head, config, microbatch, 2, activations);
  layer.parameters = {Ones("transformer.ln_f.weight", config.hidden),
                      Zeros("transformer.ln_f.bias", config.hidden)};
  layer.tied_parameters = {kTokenTable};
  return layer;
}

}  // namespace

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
