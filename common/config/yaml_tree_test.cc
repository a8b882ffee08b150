// SPDX-License-Identifier: Apache-2.0
#include "common/config/yaml_tree.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = YamlNode::Kind;

std::string ErrorOf(std::string_view text) {
  return std::string(ParseYaml(text, "job.yaml").status().message());
}

std::string Repeated(std::string_view unit, std::size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

TEST(YamlTree, KeepsOrderAndPlaces) {
  const YamlNode root = *ParseYaml("b: 1\na:\n  - x\n  - ~\n", "job.yaml");
  ASSERT_EQ(root.kind, Kind::kMap);
  EXPECT_THAT(root.keys, ElementsAre("b", "a"));
  EXPECT_EQ(root.key_where[1], "job.yaml:2:1");
  EXPECT_EQ(root.values[0].text, "1");
  EXPECT_EQ(root.values[0].where, "job.yaml:1:4");
  EXPECT_EQ(root.values[1].values[0].where, "job.yaml:3:5");
  EXPECT_EQ(root.values[1].values[1].kind, Kind::kNull);
}

TEST(YamlTree, KeepsRepeatedKeys) {
  EXPECT_THAT(ParseYaml("a: 1\na: 2", "j")->keys, ElementsAre("a", "a"));
}

TEST(YamlTree, ReadsJson) {
  const YamlNode root = *ParseYaml("{\n\t\"a\": {\"b\": [1, \"two\"], \"c\": null}\n}\n", "j");
  EXPECT_EQ(root.values[0].values[0].values[1].text, "two");
  EXPECT_EQ(root.values[0].values[1].kind, Kind::kNull);
}

TEST(YamlTree, AnEmptyFileIsAnEmptyMap) {
  EXPECT_EQ(ParseYaml("", "j")->kind, Kind::kMap);
  EXPECT_EQ(ParseYaml("# nothing\n", "j")->values.size(), 0u);
}

TEST(YamlTree, NamesThePlaceOfASyntaxError) {
  EXPECT_THAT(ErrorOf("a: 1\nb: [1, 2\n"), StartsWith("job.yaml:3:1: job file: is not YAML: "));
}

TEST(YamlTree, NamesWhatIsOpenWhereJsonEndsTooEarly) {
  EXPECT_EQ(ErrorOf("{\"a\": 1,\n \"b\": {\"c\": [1, \"]\\\"\"], \"d\""),
            "job.yaml:2:28: job file: ends before the { at 2:7 is closed; give the whole text, or "
            "close it");
  EXPECT_EQ(ErrorOf("{\"a\": \"b"),
            "job.yaml:1:9: job file: ends before the \" at 1:7 is closed; give the whole text, or "
            "close it");
  EXPECT_THAT(ErrorOf("{\"a\": 1]"), StartsWith("job.yaml:1:8: job file: is not YAML: "));
  EXPECT_THAT(ErrorOf("a: {b: 1\nc: 2"), HasSubstr("is not YAML: "));
}

TEST(YamlTree, RefusesWhatItDoesNotNeed) {
  EXPECT_EQ(
      ErrorOf("a: &x 1\nb: *x"),
      "job.yaml:1:4: job file: must have no anchors; write the value out wherever it is used");
  EXPECT_THAT(ErrorOf("a: !!python/object 1"), HasSubstr("must have no tags; remove it"));
  EXPECT_THAT(ErrorOf("a: 1\n---\nb: 2\n"), HasSubstr("more than one document"));
  EXPECT_THAT(ErrorOf("[a]: 1"), HasSubstr("is not YAML: a key must be a word; correct it"));
}

TEST(YamlTree, RefusesWhatIsNotText) {
  EXPECT_THAT(ErrorOf("a: \xff"), HasSubstr("byte 3 is not UTF-8"));
  EXPECT_THAT(ErrorOf(std::string_view("a\0b", 3)),
              HasSubstr("byte 1 is not UTF-8, or a control character"));
  EXPECT_THAT(ErrorOf("\xe0\x80\x80"), HasSubstr("byte 0 is not UTF-8"));  // overlong
  EXPECT_THAT(ErrorOf("\xed\xa0\x80"), HasSubstr("byte 0 is not UTF-8"));  // surrogate
  EXPECT_THAT(ErrorOf("\xf4\x90\x80\x80"),
              HasSubstr("byte 0 is not UTF-8"));  // beyond the last code point
  EXPECT_TRUE(ParseYaml("a: \xe2\x82\xac \xf0\x9f\x98\x80", "j").ok());
}

TEST(YamlTree, RefusesTenMegabytesShortly) {
  EXPECT_EQ(ErrorOf(std::string(10 << 20, 'x')),
            "job.yaml: job file: has 10485760 bytes; at most 1048576 are read; give a job file in "
            "YAML or JSON");
}

TEST(YamlTree, FollowsTheRulesOfOtherFiles) {
  const YamlRules rules{.what = "cluster file", .max_bytes = 20, .max_nodes = 5};
  const auto error_of = [&](std::string_view text) {
    return std::string(ParseYaml(text, "c.yaml", rules).status().message());
  };
  EXPECT_EQ(error_of("a: [b, c]"), "");
  EXPECT_EQ(error_of("a: [b, c, d, e]"),
            "c.yaml:1:11: cluster file: has too many values; write fewer");
  EXPECT_EQ(error_of(std::string(21, 'x')),
            "c.yaml: cluster file: has 21 bytes; at most 20 are read; give a cluster file in YAML "
            "or JSON");
}

// None of these may take long, use up the stack, or answer with more than a line.
TEST(YamlTree, StaysBoundedOnHostileText) {
  for (const char* unit : {"[",  "{", "- ", "? ",    "a: ",   "a:\n", "[[],",  "{a: [", "&a [",
                           "\"", "'", "!",  "|\n ",  "- a\n", "a\n",  ": ",    ", ",    "%",
                           "#",  "*", "\t", "---\n", "[a,",   "{a,",  "{a: b,"}) {
    const absl::StatusOr<YamlNode> tree = ParseYaml(Repeated(unit, 1 << 20), "job.yaml");
    if (!tree.ok()) {
      EXPECT_LT(tree.status().message().size(), 200u) << unit;
    }
  }
}

}  // namespace
}  // namespace takt::config
