// SPDX-License-Identifier: Apache-2.0
#include "common/data/document_line.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TrainingDocument Parse(std::string_view line) {
  const auto parsed = ParseDocumentLine(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return {};
  EXPECT_FALSE(parsed->has_texts);
  return parsed->document;
}

std::string ErrorOf(std::string_view line) {
  const absl::Status status = ParseDocumentLine(line).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
  return std::string(status.message());
}

TEST(DocumentLine, IdsAloneAreAllScored) {
  const TrainingDocument document = Parse(R"({"input_ids": [5, 6, 7], "other": "x"})");
  EXPECT_THAT(document.tokens, ElementsAre(5, 6, 7));
  EXPECT_THAT(document.targets, ElementsAre(6, 7, -100));
  EXPECT_THAT(Parse(R"({"input_ids": []})").tokens, IsEmpty());
}

// A label is that of its own token, which the token before it predicts.
TEST(DocumentLine, LabelsBecomeTargetsOfTheTokenBefore) {
  const TrainingDocument document =
      Parse(R"({"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]})");
  EXPECT_THAT(document.targets, ElementsAre(-100, 7, 8, -100));
}

TEST(DocumentLine, PaddingIsLeftOut) {
  const TrainingDocument document = Parse(
      R"({"input_ids": [0, 5, 6, 0], "labels": [-100, 5, 6, -100],
          "attention_mask": [0, 1, 1, 0]})");
  EXPECT_THAT(document.tokens, ElementsAre(5, 6));
  EXPECT_THAT(document.targets, ElementsAre(6, -100));
}

TEST(DocumentLine, NothingOfAPromptIsScored) {
  const TrainingDocument document = Parse(R"({"prompt": [1, 2], "completion": [3, 4]})");
  EXPECT_THAT(document.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(document.targets, ElementsAre(-100, 3, 4, -100));
}

TEST(DocumentLine, APairMayBeTexts) {
  const auto parsed = ParseDocumentLine(R"({"prompt": "", "completion": "yes"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->has_texts);
  EXPECT_EQ(parsed->completion, "yes");
}

TEST(DocumentLine, RefusesWhatIsNoDocument) {
  EXPECT_EQ(ErrorOf("x"), "must be a JSON object");
  EXPECT_EQ(ErrorOf("[1]"), "must be a JSON object");
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("must have `input_ids`"));
  for (const char* ids : {"3", "[1, -1]", "[1.5]", "[\"1\"]", "[2147483648]", "[null]", "[[1]]",
                          "[18446744073709551615]"}) {
    EXPECT_THAT(ErrorOf(std::string("{\"input_ids\": ") + ids + "}"),
                HasSubstr("must be a list of token ids"));
  }
  EXPECT_THAT(ErrorOf(R"({"input_ids": [1], "labels": [1, 2]})"), HasSubstr("differ in length"));
  EXPECT_THAT(ErrorOf(R"({"input_ids": [1], "attention_mask": []})"),
              HasSubstr("differ in length"));
  EXPECT_EQ(ErrorOf(R"({"prompt": "a"})"), "has a `prompt` without a `completion`");
  EXPECT_EQ(ErrorOf(R"({"completion": [1]})"), "has a `completion` without a `prompt`");
  EXPECT_THAT(ErrorOf(R"({"prompt": "a", "completion": [1]})"), HasSubstr("both as texts"));
  EXPECT_THAT(ErrorOf(R"({"prompt": [1], "completion": []})"), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(R"({"prompt": "a", "completion": ""})"), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(R"({"prompt": null, "completion": [1]})"), HasSubstr("`prompt` must be"));
}

}  // namespace
}  // namespace takt::data
