// SPDX-License-Identifier: Apache-2.0
#include "common/model/llama.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/layer_parts.h"
#include "common/model/mixture.h"

namespace takt::model {
namespace {

constexpr char kTokenTable[] = "model.embed_tokens.weight";

std::int64_t QueryWidth(const ModelConfig& config) {
  return std::int64_t{config.heads} * config.head_size;
}
std::int64_t KeyWidth(const ModelConfig& config) {
  return std::int64_t{config.kv_heads} * config.head_size;
}

// Names the tensors that AddHeadNorm adds.
struct HeadNormNames {
  std::string_view input, stats, part;
};

Layer Embedding(const ModelConfig& config, int microbatch) {
  return {.kind = LayerKind::kEmbedding,
          .parameters = {TableByWord(kTokenTable, config)},
          .cost = {.output_bytes = ActivationBytes(config, microbatch)}};
}

// The products with weights of one token forward are q and o, k and v, and those of the MLP.
double LinearFlops(const ModelConfig& config, bool experts) {
  const auto c = static_cast<double>(config.hidden);
  return 4 * c * static_cast<double>(QueryWidth(config) + KeyWidth(config)) +
         (experts ? MixtureFlops(config) : 6 * c * config.inner);
}

// Says which products of a block with one input read their weights as one matrix.
struct Joins {
  bool query_key_value, gate_up;

  Joins(const ModelConfig& config, const Precisions& precisions, bool experts) {
    const auto whole = [&](std::initializer_list<std::int64_t> sizes) {
      return precisions.ReadsWeightsAsStored() && std::ranges::all_of(sizes, IsWholeVectors);
    };
    query_key_value = whole({config.hidden, QueryWidth(config), KeyWidth(config)}) &&
                      !NormalisesHeads(config.family) && config.family != Family::kQwen2;
    gate_up = whole({config.hidden, config.inner}) && !experts;
  }
  bool all() const { return query_key_value && gate_up; }
};

// Returns the numbers that an MLP, or all experts of a token, have between their products.
std::int64_t InnerOf(const ModelConfig& config, bool experts) {
  return experts ? std::int64_t{config.mixture->chosen} * config.mixture->inner : config.inner;
}

// Adds what a norm of so many heads reads, and what it leaves. Its output is another tensor.
void AddHeadNorm(std::vector<StashTensor>& stash, const HeadNormNames& names, std::int64_t rows,
                 int heads, const ModelConfig& config) {
  stash.push_back(Product(names.input, rows, std::int64_t{heads} * config.head_size));
  stash.push_back(Rowwise(names.stats, rows, heads));
  stash.push_back({names.part, Origin::kInputGrad, kFloatBytes * config.head_size});
}

// Returns the tensors of LlamaBlockStash, then those of MixtureStash. Experts work in f32 between
// their products.
std::vector<StashTensor> BlockTensors(const ModelConfig& config, std::int64_t rows,
                                      const Precisions& precisions, bool experts) {
  const Precision products = precisions.products, activations = precisions.activations;
  const Precision between = experts ? Precision::kF32 : activations;
  const std::int64_t inner = InnerOf(config, experts);
  const bool normalises_heads = NormalisesHeads(config.family);
  std::vector<StashTensor> stash;
  AddNorm(stash, kNorm1, rows, config.hidden, 1, products);
  // The norms of queries and keys are cheap to compute again, from what they normalise.
  const auto query_or_key = normalises_heads ? Rowwise : Product;
  const Joins joins(config, precisions, experts);
  const std::int64_t query = QueryWidth(config), key = KeyWidth(config);
  const bool one = joins.query_key_value;
  stash.push_back(query_or_key("q", rows, one ? query + 2 * key : query, activations));
  stash.push_back(query_or_key("k", rows, one ? 0 : key, activations));
  stash.push_back(Product("v", rows, one ? 0 : key, activations));
  stash.push_back(Product("attention", rows, QueryWidth(config), activations));
  stash.push_back(Product("logsumexp", rows, config.heads));
  stash.push_back(Product("middle", rows, config.hidden, precisions.stream()));
  AddNorm(stash, kNorm2, rows, config.hidden, 1, experts ? Precision::kF32 : products);
  stash.push_back(Product("gate", rows, joins.gate_up ? 2 * inner : inner, between));
  stash.push_back(Product("up", rows, joins.gate_up ? 0 : inner, between));
  stash.push_back(Rowwise("product", rows, inner, products));
  if (normalises_heads) {
    AddHeadNorm(stash, {"raw_q", "q_norm_stats", "q_norm_part"}, rows, config.heads, config);
    AddHeadNorm(stash, {"raw_k", "k_norm_stats", "k_norm_part"}, rows, config.kv_heads, config);
  }
  if (experts) AddMixtureStash(stash, config, rows);
  return stash;
}

// Returns the tensors of LlamaBlockScratch.
std::vector<ScratchTensor> BlockScratch(const ModelConfig& config, std::int64_t rows,
                                        const Precisions& precisions, bool experts) {
  using enum ScratchTensor::Start;
  const Precision activations = precisions.activations;
  const Precision between = experts ? Precision::kF32 : activations;
  const Joins joins(config, precisions, experts);
  const std::int64_t query_bytes = Bytes(activations, rows * QueryWidth(config));
  const std::int64_t key_bytes = Bytes(activations, rows * KeyWidth(config));
  std::vector<ScratchTensor> scratch = {
      {"d_product", Bytes(between, rows * InnerOf(config, experts))},
      {"d_q", query_bytes, kWithLine},
      {"d_k", key_bytes, kBehindTensor},
      {"d_v", key_bytes, kBehindTensor},
      {"d_attention", query_bytes},
      {"d_norm", Bytes(joins.all() ? activations : Precision::kF32, rows * config.hidden),
       kWithLine},
      RoundedGradient("d_middle", precisions, rows * config.hidden)};
  if (experts) scratch.push_back({"d_router_weights", kFloatBytes * rows * config.mixture->chosen});
  return scratch;
}

void AddProjection(std::vector<Parameter>& to, const std::string& name,
                   std::vector<std::int64_t> shape, const ModelConfig& config) {
  to.push_back(Normal(name + ".weight", std::move(shape), config.initializer_range));
}

LayerKind KindOf(const ModelConfig& config, bool experts) {
  if (NormalisesHeads(config.family))
    return experts ? LayerKind::kQwen3MoeBlock : LayerKind::kQwen3Block;
  return experts ? LayerKind::kMixtralBlock : LayerKind::kLlamaBlock;
}

Layer Block(const ModelConfig& config, int microbatch, const Precisions& precisions, int block) {
  const std::int64_t c = config.hidden;
  const bool bias = config.family == Family::kQwen2;
  const bool experts = config.HasExpertsIn(block);
  const std::string prefix = absl::StrCat("model.layers.", block, ".");
  Layer layer{.kind = KindOf(config, experts), .block = block};
  std::vector<Parameter>& p = layer.parameters;
  const auto add_with_bias = [&](const char* projection, std::int64_t width) {
    const std::string name = absl::StrCat(prefix, "self_attn.", projection);
    AddProjection(p, name, {width, c}, config);
    if (bias) p.push_back(Bias(name + ".bias", width, precisions.activations));
  };
  p.push_back(Ones(prefix + "input_layernorm.weight", c));
  const Joins joins(config, precisions, experts);
  add_with_bias("q_proj", QueryWidth(config));
  p.back().adjoins_next = joins.query_key_value;
  add_with_bias("k_proj", KeyWidth(config));
  p.back().adjoins_next = joins.query_key_value;
  add_with_bias("v_proj", KeyWidth(config));
  if (NormalisesHeads(config.family)) {
    p.push_back(Ones(prefix + "self_attn.q_norm.weight", config.head_size));
    p.push_back(Ones(prefix + "self_attn.k_norm.weight", config.head_size));
  }
  AddProjection(p, prefix + "self_attn.o_proj", {c, QueryWidth(config)}, config);
  p.push_back(Ones(prefix + "post_attention_layernorm.weight", c));
  if (experts) {
    AddMixtureParameters(p, config, prefix);
  } else {
    AddProjection(p, prefix + "mlp.gate_proj", {config.inner, c}, config);
    p.back().adjoins_next = joins.gate_up;
    AddProjection(p, prefix + "mlp.up_proj", {config.inner, c}, config);
    AddProjection(p, prefix + "mlp.down_proj", {c, config.inner}, config);
  }
  SetBlockCost(layer, config, microbatch, LinearFlops(config, experts),
               static_cast<double>(InnerOf(config, experts)));
  const std::int64_t rows = Tokens(config, microbatch);
  Precisions inside = precisions;
  if (experts) inside.residual = Precision::kF32;
  layer.stash = BlockTensors(config, rows, inside, experts);
  layer.scratch = BlockScratch(config, rows, inside, experts);
  return layer;
}

Layer Head(const ModelConfig& config, int microbatch, Precision activations) {
  Layer layer = HeadLayer(LayerKind::kLlamaHead, config, microbatch, 1, activations);
  layer.parameters = {Ones("model.norm.weight", config.hidden)};
  if (config.tied_head) {
    layer.tied_parameters = {kTokenTable};
  } else {
    layer.parameters.push_back(TableByWord("lm_head.weight", config));
  }
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

std::vector<Layer> LlamaLayers(const ModelConfig& config, int microbatch,
                               const Precisions& precisions) {
  std::vector<Layer> layers;
  layers.reserve(config.layers + 2);
  layers.push_back(Embedding(config, microbatch));
  for (int block = 0; block < config.layers; ++block)
    layers.push_back(Block(config, microbatch, precisions, block));
  layers.push_back(Head(config, microbatch, precisions.activations));
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

std::int64_t RotaryTableElements(const ModelConfig& config) {
  if (!HasRotaryPositions(config.family)) return 0;
  return std::int64_t{config.context} * config.head_size;
}

std::vector<float> RotaryTable(const ModelConfig& config) {
  std::vector<float> table;
  if (RotaryTableElements(config) == 0) return table;
  table.reserve(static_cast<std::size_t>(RotaryTableElements(config)));
  const std::vector<double> frequencies = RotaryFrequencies(config);
  for (int t = 0; t < config.context; ++t) {
    for (const double f : frequencies) table.push_back(static_cast<float>(std::cos(t * f)));
    for (const double f : frequencies) table.push_back(static_cast<float>(std::sin(t * f)));
  }
  return table;
}

}  // namespace takt::model
