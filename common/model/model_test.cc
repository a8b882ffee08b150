// SPDX-License-Identifier: Apache-2.0
#include "common/model/model.h"

#include <cmath>
#include <map>

#include "common/model/llama.h"
#include "common/model/vocabulary.h"
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

// The reference implementation counts this number for this shape.
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

// Per token, products with weights take 24 C^2 for inner = 4 C, attention 2 (T+1) C, and the head 2
// C V. I adds attention once more, W has none.
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
  EXPECT_DOUBLE_EQ(model.FlopsPerMicrobatch(), all);
}

TEST(Gpt2Model, PassesOnOneF32ActivationPerBoundary) {
  const Model model = *BuildModel(Tiny(), 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(model.layers[i].cost.output_bytes, 2 * 32 * 64 * 4);
  EXPECT_EQ(model.layers[5].cost.output_bytes, 0);
}

ModelConfig TinyLlama() {
  return {.family = Family::kLlama,
          .layers = 4,
          .hidden = 64,
          .heads = 4,
          .kv_heads = 2,
          .inner = 172,
          .context = 32,
          .positions = 32,
          .vocab = 300,
          .tied_head = false};
}

std::map<std::string, std::vector<std::int64_t>> Shapes(const Model& model) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const Parameter* p : model.AllParameters()) shapes[p->name] = p->shape;
  return shapes;
}

TEST(LlamaModel, NamesAndShapesAreHuggingFaces) {
  auto shapes = Shapes(*BuildModel(TinyLlama(), 1));
  EXPECT_THAT(shapes, SizeIs(1 + 4 * 9 + 2));
  EXPECT_THAT(shapes["model.embed_tokens.weight"], ElementsAre(300, 64));
  EXPECT_THAT(shapes["model.layers.3.self_attn.q_proj.weight"], ElementsAre(64, 64));
  EXPECT_THAT(shapes["model.layers.3.self_attn.v_proj.weight"], ElementsAre(32, 64));
  EXPECT_THAT(shapes["model.layers.0.mlp.gate_proj.weight"], ElementsAre(172, 64));
  EXPECT_THAT(shapes["model.layers.0.mlp.down_proj.weight"], ElementsAre(64, 172));
  EXPECT_THAT(shapes["lm_head.weight"], ElementsAre(300, 64));
}

TEST(LlamaModel, HeadsMayBeWiderThanTheirShare) {
  ModelConfig config = TinyLlama();
  config.head_size = 24;
  auto shapes = Shapes(*BuildModel(config, 1));
  EXPECT_THAT(shapes["model.layers.0.self_attn.q_proj.weight"], ElementsAre(96, 64));
  EXPECT_THAT(shapes["model.layers.0.self_attn.o_proj.weight"], ElementsAre(64, 96));
}

TEST(Qwen2Model, HasBiasesOnQueriesKeysAndValuesAlone) {
  ModelConfig config = TinyLlama();
  config.family = Family::kQwen2;
  config.tied_head = true;
  const Model model = *BuildModel(config, 1);
  auto shapes = Shapes(model);
  EXPECT_THAT(shapes, SizeIs(1 + 4 * 12 + 1));
  EXPECT_THAT(shapes["model.layers.1.self_attn.k_proj.bias"], ElementsAre(32));
  EXPECT_THAT(model.layers.back().tied_parameters, ElementsAre("model.embed_tokens.weight"));
}

TEST(Qwen3Model, NormalisesEachHeadOfQueriesAndKeys) {
  ModelConfig config = TinyLlama();
  config.family = Family::kQwen3;
  config.head_size = 24;
  const Model model = *BuildModel(config, 1);
  auto shapes = Shapes(model);
  EXPECT_THAT(shapes, SizeIs(1 + 4 * 11 + 2));
  EXPECT_THAT(shapes["model.layers.1.self_attn.q_proj.weight"], ElementsAre(96, 64));
  EXPECT_THAT(shapes["model.layers.1.self_attn.q_norm.weight"], ElementsAre(24));
  EXPECT_THAT(shapes["model.layers.1.self_attn.k_norm.weight"], ElementsAre(24));
  const Parameter* const norm = model.Find("model.layers.3.self_attn.k_norm.weight");
  EXPECT_EQ(norm->init, Init::kOnes);
  EXPECT_FALSE(norm->decayed());
  EXPECT_EQ(model.layers[1].kind, LayerKind::kQwen3Block);
  EXPECT_EQ(model.layers[1].stash.size(), std::size_t{LlamaBlockStash::kKNormPart} + 1);
  config.family = Family::kLlama;
  EXPECT_EQ(model.FlopsPerMicrobatch(), BuildModel(config, 1)->FlopsPerMicrobatch());
}

// Of 32 positions the first 6 see 1 to 6 keys, and the others see 7.
TEST(MistralModel, CountsTheKeysOfTheWindow) {
  ModelConfig config = TinyLlama();
  const LayerCost all = BuildModel(config, 2)->layers[1].cost;
  config.family = Family::kMistral;
  EXPECT_EQ(BuildModel(config, 2)->layers[1].cost.forward_flops, all.forward_flops);
  config.attention_window = 32;
  EXPECT_EQ(config.EffectiveWindow(), 0);
  EXPECT_EQ(BuildModel(config, 2)->layers[1].cost.forward_flops, all.forward_flops);
  config.attention_window = 7;
  EXPECT_EQ(config.EffectiveWindow(), 7);
  const LayerCost cost = BuildModel(config, 2)->layers[1].cost;
  const double hidden_pairs = 32 * 33 / 2 - (6 * 7 / 2 + 26 * 7), width = 4 * 16;
  EXPECT_DOUBLE_EQ(cost.forward_flops, all.forward_flops - 2 * 4 * hidden_pairs * width);
  EXPECT_DOUBLE_EQ(cost.input_grad_flops, all.input_grad_flops - 2 * 8 * hidden_pairs * width);
  EXPECT_EQ(cost.weight_grad_flops, all.weight_grad_flops);
  config.context = 6;
  EXPECT_EQ(config.EffectiveWindow(), 0);
}

TEST(LlamaModel, RotaryFrequenciesFallFromOne) {
  const std::vector<double> frequencies = RotaryFrequencies(BuildModel(TinyLlama(), 1)->config);
  ASSERT_THAT(frequencies, SizeIs(8));
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_DOUBLE_EQ(frequencies[4], std::pow(10000.0, -0.5));
}

TEST(LlamaModel, ScaledFrequenciesKeepShortWavelengthsAndSlowLongOnes) {
  ModelConfig config = TinyLlama();
  config.head_size = 128;
  config.rope_theta = 500000;
  const std::vector<double> plain = RotaryFrequencies(config);
  config.rope_scaling = RopeScaling{.factor = 8, .original_positions = 8192};
  const std::vector<double> scaled = RotaryFrequencies(config);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8);
  int between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i], plain[i] / 8);
    if (scaled[i] != plain[i] && scaled[i] != plain[i] / 8) ++between;
  }
  EXPECT_GT(between, 0);
}

// Returns the bytes that F leaves for each token in a layer.
std::int64_t BytesPerToken(const Model& model, std::size_t layer, bool rowwise) {
  std::int64_t bytes = 0;
  for (const StashTensor& tensor : model.layers[layer].stash) {
    if (tensor.origin == Origin::kProduct || (rowwise && tensor.origin == Origin::kRowwise))
      bytes += tensor.bytes;
  }
  return bytes / (model.microbatch * model.config.context);
}

// docs/memory.md has these numbers.
TEST(Model, KeepsActivationsInBf16WhereTheyAre) {
  const Precisions kOnCpus{.products = Precision::kBf16};
  const Precisions kOnGpus{.products = Precision::kBf16, .activations = Precision::kBf16};
  constexpr std::int64_t kC = 64, kH = 4;
  const Model gpt2 = *BuildModel(Tiny(), 2, kOnGpus);
  constexpr std::int64_t kE = 256, kV = 256;
  EXPECT_EQ(BytesPerToken(gpt2, 1, true), 16 * kC + 4 * kE + 4 * kH + 16);
  EXPECT_EQ(BytesPerToken(gpt2, 1, false), 12 * kC + 2 * kE + 4 * kH);
  constexpr std::int64_t kSoftmax = 16 + 16;  // of one block, and of the row
  EXPECT_EQ(BytesPerToken(gpt2, 5, true), 2 * kC + 2 * kV + 8 + kSoftmax);
  EXPECT_EQ(BytesPerToken(*BuildModel(Tiny(), 2, kOnCpus), 1, true),
            24 * kC + 6 * kE + 4 * kH + 16);

  const Model llama = *BuildModel(TinyLlama(), 2, kOnGpus);
  constexpr std::int64_t kQ = 64, kK = 32, kInner = 172;
  EXPECT_EQ(BytesPerToken(llama, 1, true), 8 * kC + 4 * kQ + 4 * kK + 6 * kInner + 4 * kH + 8);
  EXPECT_EQ(BytesPerToken(llama, 1, false), 4 * kC + 4 * kQ + 4 * kK + 4 * kInner + 4 * kH);
  ModelConfig normalised = TinyLlama();
  normalised.family = Family::kQwen3;
  const Model qwen3 = *BuildModel(normalised, 2, kOnGpus);
  constexpr std::int64_t kG = 2;
  EXPECT_EQ(BytesPerToken(qwen3, 1, true),
            8 * kC + 8 * kQ + 8 * kK + 6 * kInner + 8 * kH + 4 * kG + 8);
  EXPECT_EQ(BytesPerToken(qwen3, 1, false), 4 * kC + 6 * kQ + 6 * kK + 4 * kInner + 4 * kH);
  EXPECT_EQ(LogitsStride(300, Precision::kF32), 300);
  EXPECT_EQ(BytesPerToken(llama, 5, false), 2 * 320 + kSoftmax);
}

// A vocabulary of two whole blocks and a rest.
TEST(Model, CutsTheHeadIntoBlocksOfWords) {
  ModelConfig config = TinyLlama();
  config.vocab = 2 * kVocabularyBlock + 100;
  const Model model =
      *BuildModel(config, 2, {.products = Precision::kBf16, .activations = Precision::kBf16});
  const Layer& head = model.layers.back();
  const std::int64_t rows = 2 * 32;
  ASSERT_THAT(head.stash, SizeIs(HeadStash::kLogits + 3));
  EXPECT_EQ(head.stash[HeadStash::kLogits].bytes, 2 * rows * kVocabularyBlock);
  EXPECT_EQ(head.stash[HeadStash::kLogits + 2].bytes, 2 * rows * 128);
  EXPECT_EQ(head.stash[HeadStash::kSoftmaxParts].bytes, 3 * 16 * rows);
  ASSERT_THAT(head.scratch, SizeIs(HeadScratch::kDNorm + 2));
  EXPECT_EQ(head.scratch[HeadScratch::kDNorm].bytes, 4 * rows * 64);
  EXPECT_EQ(NumNormEntries(head.parameters.back()), 3);
  EXPECT_EQ(NumNormEntries(model.layers.front().parameters.front()), 3);
  EXPECT_EQ(NumNormEntries(model.layers[1].parameters.front()), 1);
  const std::vector<VocabularyBlock> blocks = VocabularyBlocks(config.vocab);
  ASSERT_THAT(blocks, SizeIs(NumVocabularyBlocks(config.vocab)));
  EXPECT_EQ(blocks.back().first, 2 * kVocabularyBlock);
  EXPECT_EQ(blocks.back().words, 100);
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
  EXPECT_EQ(model.FlopsPerMicrobatch(), 0);
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
      {"model.vocab is -1: must be between 1 and 16777216; raise it",
       [](ModelConfig& c) { c.vocab = -1; }},
      {"model.context is 33: must be at most the model's positions (32); train on shorter "
       "sequences",
       [](ModelConfig& c) { c.context = 33; }},
      {"model.kv_heads is 3: must divide model.heads (4); use one of 1, 2, 4",
       [](ModelConfig& c) {
         c.family = Family::kLlama;
         c.kv_heads = 3;
       }},
      {"model.head_size is 15: must be even: rotary positions turn pairs; change it, or "
       "model.hidden or model.heads",
       [](ModelConfig& c) {
         c.family = Family::kLlama;
         c.head_size = 15;
       }},
      {"model.head_size is 7: must be even: rotary positions turn pairs; change it, or "
       "model.hidden or model.heads",
       [](ModelConfig& c) {
         c.family = Family::kQwen3;
         c.head_size = 7;
       }},
      {"model.attention_window is 0: must be between 1 and the model's positions (32); remove it, "
       "and a token sees all tokens before it",
       [](ModelConfig& c) {
         c.family = Family::kMistral;
         c.attention_window = 0;
       }},
      {"model.attention_window is 33: must be between 1 and the model's positions (32); remove it, "
       "and a token sees all tokens before it",
       [](ModelConfig& c) {
         c.family = Family::kMistral;
         c.attention_window = 33;
       }},
      {"model.attention_window is 8: only mistral has a window; remove it",
       [](ModelConfig& c) {
         c.family = Family::kQwen3;
         c.attention_window = 8;
       }},
      {"model.norm_epsilon is nan: must be a finite number above 0; use 1e-5",
       [](ModelConfig& c) { c.norm_epsilon = std::nan(""); }},
      {"model.initializer_range is 1e+300: must be a finite number, 0 or more, at most "
       "3.40282e+38, "
       "the largest number of f32; use 0.02",
       [](ModelConfig& c) { c.initializer_range = 1e300; }},
      {"model.input_grad_ms is 1e+300: must be a time between 0 and 3600000, which is an hour; "
       "give "
       "milliseconds",
       [](ModelConfig& c) {
         c = {.family = Family::kEmulated,
              .layers = 1,
              .forward_seconds = 3600,
              .input_grad_seconds = 1e297,
              .activation_bytes = 1};
       }},
      {"model.forward_ms is -1: must be a time between 0 and 3600000, which is an hour; give "
       "milliseconds",
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
