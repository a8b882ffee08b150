// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config_text.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/model/hf_config.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::model {
namespace {

using nlohmann::json;

std::string GoldenConfig(const std::string& model) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", model, "/config.json"));
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns a llama in which every number differs from the default.
ModelConfig OddLlama() {
  return {
      .family = Family::kLlama,
      .layers = 3,
      .hidden = 24,
      .heads = 4,
      .kv_heads = 2,
      .head_size = 8,
      .inner = 40,
      .context = 32,
      .positions = 32,
      .vocab = 77,
      .tied_head = true,
      .norm_epsilon = 1e-4,
      .initializer_range = 0.1,
      .rope_theta = 5e5,
      .rope_scaling = RopeScaling{
          .factor = 8, .low_freq_factor = 1.5, .high_freq_factor = 4.5, .original_positions = 16}};
}

// The text says everything about a config. There is no other comparison of configs.
std::string Rewritten(const std::string& text) {
  return FormatHfConfig(ParseHfConfig(text, "c").value());
}

TEST(HfConfigText, IsReadBackAsTheSameModel) {
  ModelConfig gpt2{.layers = 2, .hidden = 12, .heads = 3, .kv_heads = 3, .inner = 30};
  gpt2.context = gpt2.positions = 9;
  gpt2.vocab = 11;
  gpt2.head_size = 4;
  ModelConfig qwen2 = OddLlama();
  qwen2.family = Family::kQwen2;
  qwen2.rope_scaling.reset();
  ModelConfig qwen3 = OddLlama();
  qwen3.family = Family::kQwen3;
  ModelConfig mistral = OddLlama(), without_window = OddLlama();
  mistral.family = without_window.family = Family::kMistral;
  mistral.attention_window = 5;
  ModelConfig mixtral = OddLlama(), qwen3_moe = OddLlama();
  mixtral.family = Family::kMixtral;
  mixtral.mixture = Mixture{.experts = 5, .chosen = 3, .inner = 40, .auxiliary_loss = 0.5};
  qwen3_moe.family = Family::kQwen3Moe;
  qwen3_moe.mixture =
      Mixture{.experts = 6, .chosen = 2, .inner = 12, .normalised = false, .dense_blocks = {0, 2}};
  ModelConfig sigmoid = mixtral, qwen3_sigmoid = qwen3_moe;
  sigmoid.mixture->scores = qwen3_sigmoid.mixture->scores = RouterScores::kSigmoid;
  for (const ModelConfig& config : {gpt2, OddLlama(), qwen2, qwen3, mistral, without_window,
                                    mixtral, qwen3_moe, sigmoid, qwen3_sigmoid}) {
    const std::string text = FormatHfConfig(config);
    EXPECT_EQ(Rewritten(text), text);
  }
  EXPECT_EQ(ParseHfConfig(FormatHfConfig(mistral), "c")->attention_window, 5);
  EXPECT_EQ(ParseHfConfig(FormatHfConfig(qwen3), "c")->family, Family::kQwen3);
  EXPECT_EQ(ParseHfConfig(FormatHfConfig(mixtral), "c")->mixture->auxiliary_loss, 0.5);
  // No other program may take sigmoids for a softmax.
  for (const ModelConfig& config : {sigmoid, qwen3_sigmoid}) {
    EXPECT_NE(FormatHfConfig(config).find("\"model_type\": \"takt_"), std::string::npos);
    const ModelConfig read = ParseHfConfig(FormatHfConfig(config), "c").value();
    EXPECT_EQ(read.family, config.family);
    EXPECT_EQ(read.mixture->scores, RouterScores::kSigmoid);
  }
  EXPECT_EQ(ParseHfConfig(FormatHfConfig(qwen3_moe), "c")->mixture->scores, RouterScores::kSoftmax);
  EXPECT_EQ(ParseHfConfig(FormatHfConfig(qwen3_moe), "c")->mixture->dense_blocks,
            (std::vector<int>{0, 2}));
  const ModelConfig again = ParseHfConfig(FormatHfConfig(OddLlama()), "c").value();
  EXPECT_EQ(again.head_size, 8);
  EXPECT_EQ(again.norm_epsilon, 1e-4);
  EXPECT_EQ(again.rope_theta, 5e5);
  EXPECT_EQ(again.rope_scaling->high_freq_factor, 4.5);
  EXPECT_EQ(again.rope_scaling->original_positions, 16);
  EXPECT_TRUE(again.tied_head);
}

TEST(HfConfigText, SaysTheHeadSizeThatAnEarlierBuildLeftOut) {
  const std::string text = FormatHfConfig(OddLlama());
  json without = json::parse(text);
  without["head_dim"] = 0;
  json with = without;
  with["head_dim"] = 6;  // hidden / heads
  EXPECT_EQ(json::parse(WithHeadSize(without.dump())), with);
  EXPECT_EQ(WithHeadSize(text), text);
  EXPECT_EQ(WithHeadSize("no object"), "no object");
}

TEST(HfConfigText, SaysRotaryPositionsInOldAndNewWords) {
  const json object = json::parse(FormatHfConfig(OddLlama()));
  EXPECT_EQ(object["rope_theta"], 5e5);
  EXPECT_EQ(object["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(object["rope_scaling"].contains("rope_theta"), false);
  EXPECT_EQ(object["rope_parameters"]["rope_type"], "llama3");
  EXPECT_EQ(object["rope_parameters"]["rope_theta"], 5e5);
  EXPECT_EQ(object["rope_parameters"]["factor"], 8.0);
}

TEST(HfConfigText, KeepsWhatItDoesNotUse) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny",
                           "mixtral-tiny", "mixtral-aux", "qwen3moe-tiny", "qwen3moe-unnormed"}) {
    json source = json::parse(GoldenConfig(name));
    source["bos_token_id"] = 3;
    source["_name_or_path"] = "somebody/\xc3\xa4";
    source["task_specific_params"] = {{"a", {1, 2}}};
    source["attention_dropout"] = 0.25;
    const std::string text = source.dump();
    json written = json::parse(FormatHfConfig(ParseHfConfig(text, "c").value(), {.source = text}));
    for (const auto& [key, value] : source.items()) EXPECT_EQ(written[key], value) << key;
  }
}

TEST(HfConfigText, TheModelWinsOverItsSource) {
  const json written = json::parse(FormatHfConfig(
      OddLlama(),
      {.torch_dtype = "bfloat16", .source = R"({"dtype": "float16", "vocab_size": 5, "rope_scaling":
                       {"type": "llama3"}, "architectures": ["LlamaForTokenClassification"]})"}));
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_FALSE(written.contains("dtype"));
  EXPECT_EQ(written["vocab_size"], 77);
  EXPECT_FALSE(written["rope_scaling"].contains("type"));
  EXPECT_EQ(written["architectures"], json({"LlamaForCausalLM"}));
}

TEST(HfConfigText, GenerationTakesSpecialTokensAlone) {
  EXPECT_EQ(
      json::parse(FormatGenerationConfig(
          R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null, "n_head": 4})")),
      json::parse(R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 3]})"));
}

TEST(HfConfigText, FindsTheDtypeUnderBothNames) {
  EXPECT_EQ(TorchDtypeIn(R"({"torch_dtype": "float16"})"), "float16");
  EXPECT_EQ(TorchDtypeIn(R"({"dtype": "bfloat16", "torch_dtype": null})"), "bfloat16");
  EXPECT_EQ(TorchDtypeIn(R"({"dtype": 3})"), "");
  EXPECT_EQ(TorchDtypeIn("garbage"), "");
}

}  // namespace
}  // namespace takt::model
