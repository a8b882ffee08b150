// SPDX-License-Identifier: Apache-2.0
#include "common/model/hf_config.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::model {
namespace {

using ::testing::HasSubstr;

std::string ReadGolden(const std::string& name) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name));
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(HfConfig, ReadsGpt2) {
  const ModelConfig config = *ParseHfConfig(ReadGolden("gpt2-ignore-index/config.json"), "c");
  EXPECT_EQ(config.family, Family::kGpt2);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.hidden, 40);
  EXPECT_EQ(config.heads, 5);
  EXPECT_EQ(config.inner, 160);
  EXPECT_EQ(config.positions, 40);
  EXPECT_EQ(config.context, 40);
  EXPECT_EQ(config.vocab, 259);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_TRUE(BuildModel(config, 1).ok());
}

constexpr char kMinimal[] =
    R"("model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 5, "n_positions": 4)";

TEST(HfConfig, TakesAnInnerWidthOfItsOwn) {
  EXPECT_EQ(ParseHfConfig(absl::StrCat("{", kMinimal, R"(, "n_inner": 24})"), "c")->inner, 24);
}

TEST(HfConfig, RefusesByNameWhatItDoesNotCompute) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {R"("activation_function": "relu")",
       "c: activation_function is \"relu\": is not supported by this version, only \"gelu_new\"; "
       "take a model that has it"},
      {R"("scale_attn_by_inverse_layer_idx": true)",
       "c: scale_attn_by_inverse_layer_idx is true: is not supported by this version, only false; "
       "take a model that has it"},
      {R"("reorder_and_upcast_attn": true)",
       "c: reorder_and_upcast_attn is true: is not supported by this version, only false; take a "
       "model that has it"},
      {R"("tie_word_embeddings": false)",
       "c: tie_word_embeddings is false: is not supported by this version, only true; take a model "
       "that has it"},
      {R"("n_inner": [[1]])",
       "c: n_inner is a list: must be a whole number, 1 or more; correct it"},
      {R"("n_inner": 2147483648)",
       "c: n_inner is 2147483648: must be a whole number, 1 or more, at most 2147483647; correct "
       "it"},
      {R"("layer_norm_epsilon": "small")",
       "c: layer_norm_epsilon is \"small\": must be a number; correct it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseHfConfig(absl::StrCat("{", kMinimal, ", ", text, "}"), "c").status().message(),
              message);
  }
}

TEST(HfConfig, RefusesOtherFamiliesAndOtherFiles) {
  EXPECT_EQ(
      ParseHfConfig(R"({"model_type": "bert"})", "c").status().message(),
      "c: model_type is \"bert\": must be one that this version supports: gpt2, llama, qwen2, "
      "qwen3, mistral, mixtral or qwen3_moe; take a model of one of these types");
  EXPECT_THAT(std::string(ParseHfConfig("[1]", "c").status().message()),
              HasSubstr("must be a JSON object"));
}

TEST(HfConfig, NamesThePlaceFromWhichATextIsNoJson) {
  const auto error_of = [](std::string_view text) {
    return std::string(ParseHfConfig(text, "c").status().message());
  };
  EXPECT_EQ(error_of("{\"a\": 1,\n \"b\": "),
            "c:2:7: config.json: must be a JSON object: the file ends before it does; take the "
            "config.json that belongs to the model");
  EXPECT_THAT(error_of(""), HasSubstr("c:1:1: config.json: must be a JSON object: the file ends"));
  EXPECT_THAT(error_of("{\"a\": 1,\n,}"),
              HasSubstr("c:2:1: config.json: must be a JSON object: it"));
  EXPECT_THAT(error_of("{\"a\": 1e999}"), HasSubstr("whose numbers fit 64 bits"));
}

TEST(HfConfig, ListsEveryMissingKey) {
  const absl::Status status = ParseHfConfig(R"({"model_type": "gpt2"})", "c").status();
  EXPECT_EQ(FieldErrorsOf(status).size(), 5u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("c: n_positions: is missing"));
}

constexpr char kLlama[] = R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 172,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 32,
    "vocab_size": 300)";

absl::StatusOr<ModelConfig> ParseLlama(const std::string& more) {
  return ParseHfConfig(absl::StrCat("{", kLlama, ", ", more, "}"), "c");
}

TEST(HfConfig, ReadsLlamaWithHuggingFacesDefaults) {
  const ModelConfig config = ParseLlama(R"("hidden_act": "silu")").value();
  EXPECT_EQ(config.family, Family::kLlama);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_size, 16);
  EXPECT_EQ(config.inner, 172);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.rope_scaling.has_value());
}

TEST(HfConfig, AHeadSizeOfZeroIsOneThatWasLeftOut) {
  EXPECT_EQ(ParseLlama(R"("head_dim": 0)")->head_size, 16);
}

TEST(HfConfig, ReadsGroupedHeadsAndScaledPositions) {
  const ModelConfig config =
      ParseLlama(R"("num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": true,
          "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"})")
          .value();
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_size, 24);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.rope_theta, 500000);
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(config.rope_scaling->factor, 8);
  EXPECT_EQ(config.rope_scaling->original_positions, 8192);
}

TEST(HfConfig, ReadsRopeParametersOfNewerFiles) {
  const ModelConfig config =
      ParseLlama(R"("rope_parameters": {"rope_theta": 1e6, "rope_type": "default"})").value();
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_FALSE(config.rope_scaling.has_value());
}

TEST(HfConfig, RefusesByNameWhatLlamaHereDoesNotCompute) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {R"("hidden_act": "gelu")",
       "c: hidden_act is \"gelu\": is not supported by this version, only \"silu\"; take a model "
       "that has it"},
      {R"("attention_bias": true)",
       "c: attention_bias is true: is not supported by this version, only false; take a model that "
       "has it"},
      {R"("rope_scaling": {"rope_type": "yarn"})",
       "c: rope_scaling.rope_type is \"yarn\": must be one that this version supports: default or "
       "llama3; take a model with one of these"},
      {R"("rope_scaling": {"type": "linear"})",
       "c: rope_scaling.type is \"linear\": must be one that this version supports: default or "
       "llama3; take a model with one of these"},
      {R"("quantization_config": {"bits": 4})",
       "c: quantization_config is an object: is not supported; remove it"},
      {R"("layer_types": ["full_attention", "sliding_attention"])",
       "c: layer_types is \"sliding_attention\": is not supported by this version, only "
       "\"full_attention\"; take a model that has it"},
      {R"("layer_types": 1)", "c: layer_types is 1: must be a list; correct it"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})",
       "c: rope_parameters.partial_rotary_factor is 0.5: is not supported by this version, only 1; "
       "take a model that has it"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": "1",
          "high_freq_factor": 4})",
       "c: rope_scaling.low_freq_factor is \"1\": must be a number; correct it\n"
       "c: rope_scaling.original_max_position_embeddings: is missing; take the config.json that "
       "belongs to the model"},
      {R"("tie_word_embeddings": 1)",
       "c: tie_word_embeddings is 1: must be true or false; correct it"},
      {R"("rope_scaling": 2)", "c: rope_scaling is 2: must be an object; correct it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseLlama(text).status().message(), message);
  }
}

TEST(HfConfig, ReadsQwen3) {
  const ModelConfig config = ParseHfConfig(ReadGolden("qwen3-tiny/config.json"), "c").value();
  EXPECT_EQ(config.family, Family::kQwen3);
  EXPECT_EQ(config.head_size, 12);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config.attention_window.has_value());
  EXPECT_TRUE(BuildModel(config, 1).ok());
}

TEST(HfConfig, ReadsTheFirstTokenThatEndsATextIfItIsAnId) {
  const std::string text = ReadGolden("gpt2-packed/config.json");
  EXPECT_EQ(ParseHfConfig(text, "c")->end_token, 0);
  const std::string is = R"("eos_token_id": 0)";
  const auto with = [&](const std::string& value) {
    std::string changed = text;
    return changed.replace(changed.find(is), is.size(), R"("eos_token_id": )" + value);
  };
  EXPECT_EQ(ParseHfConfig(with("[5, 6]"), "c")->end_token, 5);
  for (const char* value : {"null", "[]", "-1", "\"x\"", "4294967296", "[[1]]"})
    EXPECT_EQ(ParseHfConfig(with(value), "c")->end_token, std::nullopt) << value;
}

TEST(HfConfig, ReadsMistralWithAndWithoutAWindow) {
  std::string text = ReadGolden("mistral-tiny/config.json");
  const ModelConfig config = ParseHfConfig(text, "c").value();
  EXPECT_EQ(config.family, Family::kMistral);
  EXPECT_EQ(config.attention_window, 7);
  EXPECT_TRUE(BuildModel(config, 1).ok());
  const std::string window = R"("sliding_window": 7)";
  text.replace(text.find(window), window.size(), R"("sliding_window": null)");
  EXPECT_FALSE(ParseHfConfig(text, "c")->attention_window.has_value());
}

TEST(HfConfig, RefusesByNameWhatQwen3AndMistralHereDoNotCompute) {
  constexpr char kSizes[] = R"("hidden_size": 64, "intermediate_size": 172,
      "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 32,
      "vocab_size": 300)";
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {R"("model_type": "qwen3")",
       "c: num_key_value_heads: is missing; take the config.json that belongs to the model\n"
       "c: head_dim: is missing; take the config.json that belongs to the model"},
      {R"("model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16,
          "use_sliding_window": true, "attention_bias": true)",
       "c: attention_bias is true: is not supported by this version, only false; take a model that "
       "has it\n"
       "c: use_sliding_window is true: is not supported by this version, only false; take a model "
       "that has it"},
      {R"("model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16,
          "layer_types": ["sliding_attention"])",
       "c: layer_types is \"sliding_attention\": is not supported by this version, only "
       "\"full_attention\"; take a model that has it"},
      {R"("model_type": "mistral")",
       "c: num_key_value_heads: is missing; take the config.json that belongs to the model\n"
       "c: sliding_window: is missing; take the config.json that belongs to the model"},
      {R"("model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 0)",
       "c: sliding_window is 0: must be a whole number, 1 or more; correct it"},
      {R"("model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 33)",
       "c: sliding_window is 33: must be at most max_position_embeddings (32); set it to null, "
       "which lets a token see all tokens before it, or correct the other number"},
      {R"("model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 8,
          "layer_types": ["full_attention"])",
       "c: layer_types is \"full_attention\": is not supported by this version, only "
       "\"sliding_attention\"; take a model that has it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseHfConfig(absl::StrCat("{", kSizes, ", ", text, "}"), "c").status().message(),
              message);
  }
}

TEST(HfConfig, ReadsMixtral) {
  const ModelConfig config = ParseHfConfig(ReadGolden("mixtral-aux/config.json"), "c").value();
  EXPECT_EQ(config.family, Family::kMixtral);
  EXPECT_EQ(config.inner, 12);
  ASSERT_TRUE(config.mixture.has_value());
  EXPECT_EQ(config.mixture->experts, 8);
  EXPECT_EQ(config.mixture->chosen, 2);
  EXPECT_EQ(config.mixture->inner, 12);
  EXPECT_TRUE(config.mixture->normalised);
  EXPECT_EQ(config.mixture->auxiliary_loss, 0.02);
  EXPECT_TRUE(BuildModel(config, 1).ok());
  // The weight alone does not make the auxiliary loss part of the loss.
  EXPECT_EQ(ParseHfConfig(ReadGolden("mixtral-tiny/config.json"), "c")->mixture->auxiliary_loss, 0);
}

TEST(HfConfig, ReadsQwen3MoeAndWhichBlocksAreDense) {
  const std::string text = ReadGolden("qwen3moe-unnormed/config.json");
  const ModelConfig config = ParseHfConfig(text, "c").value();
  EXPECT_EQ(config.family, Family::kQwen3Moe);
  EXPECT_EQ(config.inner, 28);
  EXPECT_EQ(config.mixture->experts, 6);
  EXPECT_EQ(config.mixture->chosen, 3);
  EXPECT_EQ(config.mixture->inner, 12);
  EXPECT_FALSE(config.mixture->normalised);
  EXPECT_EQ(config.mixture->dense_blocks, std::vector<int>{1});
  EXPECT_TRUE(BuildModel(config, 1).ok());
  std::string every_second = text;
  const std::string step = R"("decoder_sparse_step": 1)";
  every_second.replace(every_second.find(step), step.size(), R"("decoder_sparse_step": 2)");
  EXPECT_EQ(ParseHfConfig(every_second, "c")->mixture->dense_blocks, (std::vector<int>{0, 1, 2}));
  std::string renamed = text;
  const std::string experts = R"("num_experts":)";
  renamed.replace(renamed.find(experts), experts.size(), R"("num_local_experts":)");
  EXPECT_EQ(ParseHfConfig(renamed, "c")->mixture->experts, 6);
  EXPECT_TRUE(ParseHfConfig(ReadGolden("qwen3moe-tiny/config.json"), "c")->mixture->normalised);
}

TEST(HfConfig, RefusesByNameWhatMixturesHereDoNotCompute) {
  constexpr char kSizes[] = R"("hidden_size": 64, "intermediate_size": 172,
      "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 32,
      "vocab_size": 300, "num_key_value_heads": 2, "num_experts_per_tok": 2)";
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {R"("model_type": "mixtral")",
       "c: num_local_experts: is missing; take the config.json that belongs to the model"},
      {R"("model_type": "mixtral", "num_local_experts": 1)",
       "c: num_experts_per_tok is 2: must be at most the number of experts (1); correct one of "
       "them"},
      {R"("model_type": "mixtral", "num_local_experts": 0)",
       "c: num_local_experts is 0: must be a whole number, 1 or more; correct it"},
      {R"("model_type": "mixtral", "num_local_experts": 8, "router_jitter_noise": 0.1)",
       "c: router_jitter_noise is 0.1: is not supported by this version, only 0.0; take a model "
       "that has it"},
      {R"("model_type": "mixtral", "num_local_experts": 8, "sliding_window": 16)",
       "c: sliding_window is 16: is not supported; remove it"},
      {R"("model_type": "qwen3_moe", "num_experts": 8)",
       "c: moe_intermediate_size: is missing; take the config.json that belongs to the model"},
      {R"("model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 8,
          "mlp_only_layers": [-1])",
       "c: mlp_only_layers is -1: must be a list of whole numbers, 0 or more; correct it"},
      {R"("model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 8,
          "mlp_only_layers": [2147483648])",
       "c: mlp_only_layers is 2147483648: must be a list of whole numbers, 0 or more, at most "
       "2147483647; correct it"},
      {R"("model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 8,
          "scoring_func": "sigmoid", "n_shared_experts": 1)",
       "c: scoring_func is \"sigmoid\": is not supported; remove it\n"
       "c: n_shared_experts is 1: is not supported; remove it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseHfConfig(absl::StrCat("{", kSizes, ", ", text, "}"), "c").status().message(),
              message);
  }
}

}  // namespace
}  // namespace takt::model
