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
       "c: activation_function is \"relu\": is not supported by this version, only \"gelu_new\""},
      {R"("scale_attn_by_inverse_layer_idx": true)",
       "c: scale_attn_by_inverse_layer_idx is true: is not supported by this version, only false"},
      {R"("reorder_and_upcast_attn": true)",
       "c: reorder_and_upcast_attn is true: is not supported by this version, only false"},
      {R"("tie_word_embeddings": false)",
       "c: tie_word_embeddings is false: is not supported by this version, only true"},
      {R"("n_inner": [[1]])", "c: n_inner is a list: must be a whole number, 1 or more"},
      {R"("layer_norm_epsilon": "small")", "c: layer_norm_epsilon is \"small\": must be a number"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseHfConfig(absl::StrCat("{", kMinimal, ", ", text, "}"), "c").status().message(),
              message);
  }
}

TEST(HfConfig, RefusesOtherFamiliesAndOtherFiles) {
  EXPECT_EQ(ParseHfConfig(R"({"model_type": "llama"})", "c").status().message(),
            "c: model_type is \"llama\": must be one that this version supports: gpt2");
  EXPECT_THAT(std::string(ParseHfConfig("[1]", "c").status().message()),
              HasSubstr("must be a JSON object"));
  EXPECT_THAT(std::string(ParseHfConfig("{\"a", "c").status().message()),
              HasSubstr("must be a JSON object"));
}

TEST(HfConfig, ListsEveryMissingKey) {
  const absl::Status status = ParseHfConfig(R"({"model_type": "gpt2"})", "c").status();
  EXPECT_EQ(FieldErrorsOf(status).size(), 5u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("c: n_positions: is missing"));
}

}  // namespace
}  // namespace takt::model
