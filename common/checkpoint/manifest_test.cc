// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/manifest.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest Sample() {
  return {.job = "kjv-gpt",
          .generation = Generation(2),
          .step = StepId(100),
          .windows = 3200,
          .seed = 18446744073709551615ULL,
          .plan_hash = "9f0c",
          .job_spec = R"({"name":"kjv-gpt","optimizer":{"adamw":{"epsilon":1e-8}}})",
          .files = {{"model-00001-of-00001.safetensors", 512, std::string(32, 'a')},
                    {"config.json", 7, std::string(32, '0')}}};
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Returns the text with one piece replaced and the hash corrected.
std::string Rewritten(const std::string& from, const std::string& to) {
  std::string text = *FormatManifest(Sample());
  text = text.substr(0, text.find(",\n  \"manifest_xxh3_128\""));
  EXPECT_THAT(text, HasSubstr(from));
  text = absl::StrReplaceAll(text, {{from, to}});
  const std::string hash = HashOf(std::as_bytes(std::span(text)));
  return absl::StrCat(text, ",\n  \"manifest_xxh3_128\": \"", hash, "\"\n}\n");
}

TEST(Hash, IsWhatXxhsumPrints) {
  EXPECT_EQ(HashOf({}), "99aa06d3014798d86001c324468d497f");
  Hasher pieces;
  const std::string text(1000, 'x');
  for (const char& c : text) pieces.Add(std::as_bytes(std::span(&c, 1)));
  EXPECT_EQ(pieces.Digest(), HashOf(std::as_bytes(std::span(text))));
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const absl::StatusOr<std::string> text = FormatManifest(Sample());
  ASSERT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<Manifest> manifest = ParseManifest(*text, "m");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job, "kjv-gpt");
  EXPECT_EQ(manifest->generation, Generation(2));
  EXPECT_EQ(manifest->step, StepId(100));
  EXPECT_EQ(manifest->windows, 3200);
  EXPECT_EQ(manifest->seed, 18446744073709551615ULL);
  EXPECT_EQ(manifest->plan_hash, "9f0c");
  EXPECT_EQ(manifest->job_spec, R"({"name":"kjv-gpt","optimizer":{"adamw":{"epsilon":1e-08}}})");
  ASSERT_NE(manifest->Find("config.json"), nullptr);
  EXPECT_EQ(*manifest->Find("config.json"), Sample().files[1]);
  EXPECT_EQ(manifest->Find("other"), nullptr);
  EXPECT_EQ(*FormatManifest(*manifest), *text);
}

TEST(Manifest, IsPlainJsonForOthers) {
  const nlohmann::json json = nlohmann::json::parse(*FormatManifest(Sample()));
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["data"]["windows"], 3200);
  EXPECT_EQ(json["job_spec"]["name"], "kjv-gpt");
  EXPECT_EQ(json["files"][0]["name"], "config.json");
  EXPECT_EQ(json["files"][1]["bytes"], 512);
}

TEST(Manifest, DetectsEveryFlippedBitAndEveryTruncation) {
  const std::string text = *FormatManifest(Sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      EXPECT_FALSE(ParseManifest(flipped, "m").ok()) << i << " " << bit;
    }
    const absl::Status cut = ParseManifest(text.substr(0, i), "m").status();
    EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_THAT(Message(cut), ::testing::StartsWith("m: "));
  }
}

TEST(Manifest, NamesTheFieldAndTheRule) {
  const struct {
    const char *from, *to, *field, *rule;
  } cases[] = {
      {"\"format\": 1", "\"format\": 2", "format", "must be 1"},
      {"\"format\": 1,", "", "format", "is missing"},
      {"\"step\": 100", "\"step\": \"100\"", "step", "whole number"},
      {"\"step\": 100", "\"step\": 1e2", "step", "whole number"},
      {"\"step\": 100", "\"step\": 0", "step", "at least 1"},
      {"\"step\": 100", "\"step\": 9223372036854775808", "step", "to 9223372036854775807"},
      {"\"seed\": 18446744073709551615", "\"seed\": -1", "seed", "from 0 to"},
      {"\"windows\": 3200", "\"windows\": -1", "data.windows", "must not be negative"},
      {"\"windows\"", "\"window\"", "data.windows", "is missing"},
      {"\"kjv-gpt\",\n  \"gen", "\"../up\",\n  \"gen", "job", "must be the name of a job"},
      {"\"plan_hash\"", "\"plan\"", "plan_hash", "is missing"},
      {"\"plan_hash\"", "\"more\": 1, \"plan_hash\"", "more", "is no field"},
      {"\"files\": [", "\"files\": {}, \"x\": [", "files", "has the wrong type"},
      {"\"config.json\"", "\"../config.json\"", "files[0].name", "beside the manifest"},
      {"\"config.json\"", "\"manifest.json\"", "files[0].name", "beside the manifest"},
      {"\"config.json\"", "\"zzz\"", "files[1].name", "sorted by name"},
      {"\"bytes\": 512", "\"bytes\": -512", "files[1].bytes", "must not be negative"},
      {"\"xxh3_128\": \"aaaa", "\"xxh3_128\": \"AAAA", "files[1].xxh3_128", "hexadecimal"},
  };
  for (const auto& [from, to, field, rule] : cases) {
    SCOPED_TRACE(absl::StrCat(from, " -> ", to));
    const absl::Status status = ParseManifest(Rewritten(from, to), "DIR/manifest.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("DIR/manifest.json"), HasSubstr(field), HasSubstr(rule)));
    ASSERT_EQ(FieldErrorsOf(status).size(), 1U);
    EXPECT_EQ(FieldErrorsOf(status)[0].field, field);
  }
}

TEST(Manifest, RefusesAKeyGivenTwiceAndAnyOtherShape) {
  EXPECT_FALSE(ParseManifest(Rewritten("\"step\": 100", "\"step\": 99, \"step\": 100"), "m").ok());
  EXPECT_FALSE(ParseManifest(Rewritten("\"step\": 100", "\"step\":  100"), "m").ok());
  const std::string deep = absl::StrCat("\"job_spec\": {\"x\": ", std::string(100000, '['));
  EXPECT_FALSE(ParseManifest(Rewritten("\"job_spec\": {", deep), "m").ok());
}

TEST(Manifest, IsNotWrittenFromWhatCouldNotBeRead) {
  Manifest manifest = Sample();
  manifest.job_spec = "[]";
  EXPECT_FALSE(FormatManifest(manifest).ok());
  manifest = Sample();
  manifest.job = "\xff";
  EXPECT_FALSE(FormatManifest(manifest).ok());
  manifest = Sample();
  manifest.files.push_back(manifest.files.front());
  EXPECT_FALSE(FormatManifest(manifest).ok());
}

}  // namespace
}  // namespace takt::checkpoint
