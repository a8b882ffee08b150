// SPDX-License-Identifier: Apache-2.0
#include "common/model/mixture.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/model/llama.h"
#include "gmock/gmock.h"

namespace takt::model {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

ModelConfig Tiny(Family family) {
  return {.family = family,
          .layers = 4,
          .hidden = 64,
          .heads = 4,
          .kv_heads = 2,
          .inner = 96,
          .context = 32,
          .positions = 32,
          .vocab = 300,
          .tied_head = false,
          .mixture = Mixture{.experts = 8, .chosen = 2, .inner = 96}};
}

std::map<std::string, std::vector<std::int64_t>> Shapes(const Model& model) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const Parameter* parameter : model.AllParameters())
    shapes[parameter->name] = parameter->shape;
  return shapes;
}

TEST(Mixture, HasTheNamesOfMixtral) {
  const Model model = *BuildModel(Tiny(Family::kMixtral), 1);
  auto shapes = Shapes(model);
  EXPECT_THAT(shapes, SizeIs(1 + 4 * (6 + 1 + 8 * 3) + 2));
  const std::string mixture = "model.layers.3.block_sparse_moe.";
  EXPECT_THAT(shapes[mixture + "gate.weight"], ElementsAre(8, 64));
  EXPECT_THAT(shapes[mixture + "experts.7.w1.weight"], ElementsAre(96, 64));
  EXPECT_THAT(shapes[mixture + "experts.7.w2.weight"], ElementsAre(64, 96));
  EXPECT_THAT(shapes[mixture + "experts.7.w3.weight"], ElementsAre(96, 64));
  EXPECT_EQ(model.layers[1].kind, LayerKind::kMixtralBlock);
}

TEST(Mixture, SigmoidScoresHaveABias) {
  ModelConfig config = Tiny(Family::kMixtral);
  config.mixture->scores = RouterScores::kSigmoid;
  const Model model = *BuildModel(config, 1);
  const Parameter& bias = model.layers[1].parameters.back();
  EXPECT_EQ(bias.name, "model.layers.0.block_sparse_moe.gate.e_score_correction_bias");
  EXPECT_THAT(bias.shape, ElementsAre(8));
  EXPECT_EQ(bias.init, Init::kZeros);
  for (const Parameter* parameter : model.AllParameters())
    EXPECT_EQ(parameter->balances, parameter->name.ends_with("_bias")) << parameter->name;
}

TEST(Mixture, HasTheNamesOfQwen3MoeAndDenseBlocks) {
  ModelConfig config = Tiny(Family::kQwen3Moe);
  config.mixture->inner = 40;
  config.mixture->dense_blocks = {0, 2};
  const Model model = *BuildModel(config, 1);
  auto shapes = Shapes(model);
  EXPECT_THAT(shapes, SizeIs(1 + 2 * 11 + 2 * (8 + 1 + 8 * 3) + 2));
  EXPECT_THAT(shapes["model.layers.1.mlp.gate.weight"], ElementsAre(8, 64));
  EXPECT_THAT(shapes["model.layers.1.mlp.experts.0.gate_proj.weight"], ElementsAre(40, 64));
  EXPECT_THAT(shapes["model.layers.1.mlp.experts.0.down_proj.weight"], ElementsAre(64, 40));
  EXPECT_THAT(shapes["model.layers.2.mlp.up_proj.weight"], ElementsAre(96, 64));
  EXPECT_EQ(model.layers[1].kind, LayerKind::kQwen3Block);
  EXPECT_EQ(model.layers[2].kind, LayerKind::kQwen3MoeBlock);
  EXPECT_EQ(model.layers[1].stash.size(), std::size_t{LlamaBlockStash::kKNormPart} + 1);
}

// The formulas count the experts that a token chooses, and no others.
TEST(Mixture, CountsTheProductsOfActiveExperts) {
  ModelConfig dense = Tiny(Family::kLlama);
  dense.mixture.reset();
  const LayerCost mlp = BuildModel(dense, 2)->layers[1].cost;
  const LayerCost cost = BuildModel(Tiny(Family::kMixtral), 2)->layers[1].cost;
  constexpr double kTokens = 2 * 32, kC = 64, kF = 96;
  constexpr double kMore = kTokens * (6 * kC * kF + 2 * kC * 8);  // the second expert, the router
  EXPECT_DOUBLE_EQ(cost.forward_flops, mlp.forward_flops + kMore);
  EXPECT_DOUBLE_EQ(cost.input_grad_flops, mlp.input_grad_flops + kMore);
  EXPECT_DOUBLE_EQ(cost.weight_grad_flops, mlp.weight_grad_flops + kMore);
  EXPECT_DOUBLE_EQ(cost.recompute_flops, cost.forward_flops - kTokens * 2 * kC * 2 * kF);
}

// docs/memory.md has these numbers.
TEST(Mixture, KeepsThreeNumbersOfEachPairBesideItsRows) {
  for (const Precision products : {Precision::kF32, Precision::kBf16}) {
    const Model model = *BuildModel(Tiny(Family::kMixtral), 2, {.products = products});
    const Layer& layer = model.layers[1];
    const std::size_t first = layer.stash.size() - MixtureStash::kNumTensors;
    constexpr std::int64_t kRows = 2 * 32, kPairs = 2 * kRows;
    EXPECT_EQ(layer.stash[LlamaBlockStash::kNorm2].bytes, 4 * kRows * 64);
    EXPECT_EQ(layer.stash[LlamaBlockStash::kGate].bytes, 4 * kPairs * 96);
    EXPECT_EQ(layer.stash[LlamaBlockStash::kProduct].bytes,
              (products == Precision::kBf16 ? 2 : 4) * kPairs * 96);
    EXPECT_EQ(layer.stash[first + MixtureStash::kLogits].bytes, 4 * kRows * 8);
    EXPECT_EQ(layer.stash[first + MixtureStash::kChoices].bytes, 4 * kPairs);
    EXPECT_EQ(layer.stash[first + MixtureStash::kWeights].bytes, 4 * kPairs);
    EXPECT_EQ(layer.stash[first + MixtureStash::kOffsets].bytes, 4 * 9);
    EXPECT_EQ(layer.stash[first + MixtureStash::kPairs].bytes, 4 * kPairs);
    EXPECT_EQ(layer.scratch[LlamaBlockScratch::kDWeights].bytes, 4 * kPairs);
  }
}

TEST(Mixture, MultipliesByTheRouterInF32) {
  const Model model = *BuildModel(Tiny(Family::kMixtral), 1, {.products = Precision::kBf16});
  for (const Parameter& parameter : model.layers[1].parameters) {
    const bool is_router = parameter.name.ends_with("block_sparse_moe.gate.weight");
    EXPECT_EQ(parameter.multiplies_in_f32, is_router) << parameter.name;
    EXPECT_EQ(model.layers[1].MultipliesBy(parameter), parameter.decayed() && !is_router);
  }
}

TEST(CheckMixture, NamesTheFieldAndTheRule) {
  const struct {
    const char* message;
    void (*change)(ModelConfig&);
  } cases[] = {
      {"model.experts: is missing; give count and per_token, e.g. {count: 8, per_token: 2}",
       [](ModelConfig& c) { c.mixture.reset(); }},
      {"model.experts: only mixtral and qwen3_moe have experts; remove it, or change model.family",
       [](ModelConfig& c) { c.family = Family::kQwen3; }},
      {"model.experts.per_token is 9: must be between 1 and model.experts.count (8); correct one "
       "of them",
       [](ModelConfig& c) { c.mixture->chosen = 9; }},
      {"model.experts.per_token is 0: must be between 1 and model.experts.count (8); correct one "
       "of them",
       [](ModelConfig& c) { c.mixture->chosen = 0; }},
      {"model.experts.count is -1: must be between 1 and 4096; raise it\n"
       "model.experts.per_token is 2: must be between 1 and model.experts.count (-1); correct one "
       "of them",
       [](ModelConfig& c) { c.mixture->experts = -1; }},
      {"model.experts.inner is 40: must be model.inner (96), the width of mixtral's experts; "
       "remove it",
       [](ModelConfig& c) { c.mixture->inner = 40; }},
      {"model.experts.normalize is false: mixtral divides the weights of a token's experts by "
       "their sum; remove it, or use qwen3_moe",
       [](ModelConfig& c) { c.mixture->normalised = false; }},
      {"model.experts.auxiliary_loss is inf: must be a finite number, 0 or more; correct it, e.g. "
       "0.01",
       [](ModelConfig& c) { c.mixture->auxiliary_loss = std::numeric_limits<double>::infinity(); }},
      {"model.experts.bias_rate is 1e+39: must be a finite number, 0 or more, at most 3.40282e+38, "
       "the largest number of f32; correct it, e.g. 0.001",
       [](ModelConfig& c) { c.mixture->bias_rate = 1e39; }},
      {"model.experts.bias_rate is -1: must be a finite number, 0 or more; correct it, e.g. 0.001",
       [](ModelConfig& c) { c.mixture->bias_rate = -1; }},
      {"model.experts.dense_blocks is 1: only qwen3_moe has dense blocks; remove it",
       [](ModelConfig& c) { c.mixture->dense_blocks = {1}; }},
      {"model.experts.dense_blocks is 1 to 4: must be ascending numbers of blocks, 0 to 3; correct "
       "the list",
       [](ModelConfig& c) {
         c.family = Family::kQwen3Moe;
         c.mixture->dense_blocks = {1, 4};
       }},
      {"model.experts.dense_blocks is 2 to 2: must be ascending numbers of blocks, 0 to 3; correct "
       "the list",
       [](ModelConfig& c) {
         c.family = Family::kQwen3Moe;
         c.mixture->dense_blocks = {2, 2};
       }},
  };
  for (const auto& [message, change] : cases) {
    ModelConfig config = Tiny(Family::kMixtral);
    change(config);
    EXPECT_EQ(BuildModel(config, 1).status().message(), message);
  }
}

}  // namespace
}  // namespace takt::model
