// SPDX-License-Identifier: Apache-2.0
#include "common/model/model.h"

#include <cmath>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::model {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

ModelConfig Tiny() {
  return {.layers = 4,
          .hidden = 64,
          .heads = 4,
          .kv_heads = 4,
          .inner = 256,
          .context = 32,
          .positions = 32,
          .vocab = 256};
}

TEST(Gpt2Model, ListsEmbeddingBlocksAndHead) {
  const Model model = *BuildModel(Tiny(), 2);
  ASSERT_THAT(model.layers, SizeIs(6));
  EXPECT_EQ(model.layers[0].kind, LayerKind::kEmbedding);
  EXPECT_EQ(model.layers[1].kind, LayerKind::kGpt2Block);
  EXPECT_EQ(model.layers[4].block, 3);
  EXPECT_EQ(model.layers[5].kind, LayerKind::kGpt2Head);
  EXPECT_THAT(model.layers[5].tied_parameters, ElementsAre("transformer.wte.weight"));
}

// The number that the reference implementation counts for this shape.
TEST(Gpt2Model, CountsParametersWithTheTiedTableOnce) {
  EXPECT_EQ(BuildModel(Tiny(), 1)->num_parameters(), 218496);
}

TEST(Gpt2Model, NamesAndShapesAreHuggingFaces) {
  const Model model = *BuildModel(Tiny(), 1);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const Parameter* p : model.AllParameters()) shapes[p->name] = p->shape;
  EXPECT_THAT(shapes, SizeIs(2 + 4 * 12 + 2));
  EXPECT_THAT(shapes["transformer.wte.weight"], ElementsAre(256, 64));
  EXPECT_THAT(shapes["transformer.wpe.weight"], ElementsAre(32, 64));
  EXPECT_THAT(shapes["transformer.h.3.attn.c_attn.weight"], ElementsAre(64, 192));
  EXPECT_THAT(shapes["transformer.h.3.attn.c_attn.bias"], ElementsAre(192));
  EXPECT_THAT(shapes["transformer.h.0.mlp.c_fc.weight"], ElementsAre(64, 256));
  EXPECT_THAT(shapes["transformer.h.0.mlp.c_proj.weight"], ElementsAre(256, 64));
  EXPECT_THAT(shapes["transformer.ln_f.bias"], ElementsAre(64));
}

TEST(Gpt2Model, InitialValuesFollowGpt2) {
  const Model model = *BuildModel(Tiny(), 1);
  for (const Parameter* p : model.AllParameters()) {
    if (p->name.ends_with(".bias")) {
      EXPECT_EQ(p->init, Init::kZeros) << p->name;
    } else if (p->shape.size() == 1) {
      EXPECT_EQ(p->init, Init::kOnes) << p->name;
    } else {
      const bool residual = p->name.ends_with("c_proj.weight");
      EXPECT_EQ(p->init, Init::kNormal) << p->name;
      EXPECT_DOUBLE_EQ(p->stddev, residual ? 0.02 / std::sqrt(8.0) : 0.02) << p->name;
    }
    EXPECT_EQ(p->decayed(), p->shape.size() == 2) << p->name;
  }
}

// Linear 24 C^2 for inner = 4 C, attention 2 (T+1) C, head 2 C V, all per token; I adds attention
// once more, W has none.
TEST(Gpt2Model, CountsFlopsByPass) {
  const Model model = *BuildModel(Tiny(), 2);
  const double tokens = 2 * 32, linear = tokens * 24 * 64 * 64, attention = tokens * 2 * 33 * 64;
  const LayerCost& block = model.layers[2].cost;
  EXPECT_DOUBLE_EQ(block.forward_flops, linear + attention);
  EXPECT_DOUBLE_EQ(block.input_grad_flops, linear + 2 * attention);
  EXPECT_DOUBLE_EQ(block.weight_grad_flops, linear);
  EXPECT_DOUBLE_EQ(model.layers[5].cost.weight_grad_flops, tokens * 2 * 64 * 256);
  EXPECT_DOUBLE_EQ(model.layers[0].cost.forward_flops, 0);
  double all = 0;
  for (const Layer& layer : model.layers) {
    all += layer.cost.forward_flops + layer.cost.input_grad_flops + layer.cost.weight_grad_flops;
  }
  EXPECT_DOUBLE_EQ(model.FlopsPerToken() * tokens, all);
}

TEST(Gpt2Model, PassesOnOneF32ActivationPerBoundary) {
  const Model model = *BuildModel(Tiny(), 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(model.layers[i].cost.output_bytes, 2 * 32 * 64 * 4);
  EXPECT_EQ(model.layers[5].cost.output_bytes, 0);
}

TEST(EmulatedModel, HasOnlyBlocksThatTakeTime) {
  const Model model = *BuildModel({.family = Family::kEmulated,
                                   .layers = 3,
                                   .forward_seconds = 0.005,
                                   .input_grad_seconds = 0.006,
                                   .weight_grad_seconds = 0.007,
                                   .activation_bytes = 262144},
                                  1);
  ASSERT_THAT(model.layers, SizeIs(3));
  EXPECT_EQ(model.layers[1].kind, LayerKind::kEmulated);
  EXPECT_EQ(model.layers[1].cost.weight_grad_seconds, 0.007);
  EXPECT_EQ(model.layers[1].cost.output_bytes, 262144);
  EXPECT_EQ(model.num_parameters(), 0);
  EXPECT_EQ(model.FlopsPerToken(), 0);
}

struct BadConfig {
  const char* message;
  void (*change)(ModelConfig&);
};

TEST(CheckConfig, NamesTheFieldAndTheRule) {
  const BadConfig cases[] = {
      {"model.heads is 5: must divide model.hidden (64); use one of 1, 2, 4, 8, 16, 32, 64",
       [](ModelConfig& c) { c.heads = c.kv_heads = 5; }},
      {"model.layers is 0 or missing: must be between 1 and 4096; set it",
       [](ModelConfig& c) { c.layers = 0; }},
      {"model.vocab is -1: must be between 1 and 16777216; set it",
       [](ModelConfig& c) { c.vocab = -1; }},
      {"model.context is 33: must be at most the model's positions (32); train on shorter "
       "sequences",
       [](ModelConfig& c) { c.context = 33; }},
      {"model.family is llama: is not supported by this version; use gpt2 or emulated",
       [](ModelConfig& c) { c.family = Family::kLlama; }},
      {"model.norm_epsilon is nan: must be a finite number above 0; use 1e-5",
       [](ModelConfig& c) { c.norm_epsilon = std::nan(""); }},
      {"model.forward_ms is -1: must be a finite time, 0 or more; give milliseconds",
       [](ModelConfig& c) {
         c = {.family = Family::kEmulated,
              .layers = 1,
              .forward_seconds = -1e-3,
              .activation_bytes = 1};
       }},
  };
  for (const BadConfig& bad : cases) {
    ModelConfig config = Tiny();
    bad.change(config);
    EXPECT_EQ(BuildModel(config, 1).status().message(), bad.message);
  }
}

TEST(CheckConfig, ReportsAllErrorsAtOnce) {
  ModelConfig config = Tiny();
  config.heads = config.kv_heads = 3;
  config.context = 64;
  EXPECT_THAT(CheckConfig(config), SizeIs(2));
}

}  // namespace
}  // namespace takt::model
