// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hf_index.h"

#include "gtest/gtest.h"

namespace takt::checkpoint {
namespace {

TEST(HfIndex, ReadsWhatHuggingFaceWrites) {
  const auto map = ParseHfIndex(R"({
  "metadata": {"total_size": 8, "total_parameters": 2},
  "weight_map": {"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"}
})");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(*map, (WeightMap{{"a", ShardName("model", 0, 2)}, {"b", ShardName("model", 1, 2)}}));
}

TEST(HfIndex, WritesAsHuggingFaceDoes) {
  EXPECT_EQ(FormatHfIndex({{"b", "y"}, {"a", "x"}}, 12),
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"
            "  \"weight_map\": {\n    \"a\": \"x\",\n    \"b\": \"y\"\n  }\n}\n");
}

TEST(HfIndex, NamesEveryDefect) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "must be a JSON object"},
      {"[1]", "must be a JSON object"},
      {"{\"weight_map\": {", "must be a JSON object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map": []})", "weight_map must be an object"},
      {R"({"weight_map": {}})", "weight_map names no tensor"},
      {R"({"weight_map": {"a": 1}})", "weight_map: \"a\" must be the name of a file in quotes"},
      {R"({"weight_map": {"a": "x", "a": "y"}})", "\"a\" is given twice"},
      {R"({"weight_map": {"a": "x"}, "weight_map": {"a": "y"}})", "\"weight_map\" is given twice"},
      {R"({"weight_map": {"a": "../x"}})",
       "weight_map: \"a\" is in \"../x\", which must be a file of the same folder"},
      {R"({"weight_map": {"a": "/etc/x"}})",
       "weight_map: \"a\" is in \"/etc/x\", which must be a file of the same folder"},
      {R"({"weight_map": {"a": ".."}})",
       "weight_map: \"a\" is in \"..\", which must be a file of the same folder"},
      {R"({"weight_map": {"a": ""}})",
       "weight_map: \"a\" is in \"\", which must be a file of the same folder"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(ParseHfIndex(text).status().message(), message) << text;
  }
}

}  // namespace
}  // namespace takt::checkpoint
