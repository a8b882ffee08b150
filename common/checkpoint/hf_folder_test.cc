// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hf_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "common/checkpoint/hf_index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Zeros.
Tensor Zeros(std::string name, std::string dtype, std::vector<std::int64_t> shape) {
  static const std::vector<std::byte> bytes(1024);
  std::size_t size = dtype == "F32" || dtype == "I32" ? 4 : 2;
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  return {.name = std::move(name),
          .dtype = std::move(dtype),
          .shape = std::move(shape),
          .bytes = std::span(bytes).first(size)};
}

class HfFolderTest : public testing::Test {
 protected:
  HfFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "takt-hf-folder-XXXXXX").string();
    directory_ = fs::canonical(mkdtemp(pattern.data()));
  }
  ~HfFolderTest() override { fs::remove_all(directory_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  void WriteShard(const std::string& name, std::vector<Tensor> tensors) {
    Write(name, FormatSafetensors(std::move(tensors), {{"format", "pt"}}));
  }
  std::string OpenError() {
    return std::string(HfFolder::Open(directory_.string()).status().message());
  }

  fs::path directory_;
};

TEST_F(HfFolderTest, OneFileNeedsNoIndex) {
  WriteShard("model.safetensors", {Zeros("a", "F32", {2, 3})});
  const auto folder = HfFolder::Open(directory_.string());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(folder->Find("a")->shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(folder->Find("b"), nullptr);
}

TEST_F(HfFolderTest, ShardsAreOneFolder) {
  WriteShard("x", {Zeros("transformer.a", "F32", {1}), Zeros("c", "BF16", {1})});
  WriteShard("y", {Zeros("b", "F16", {4})});
  Write(kIndexFile, FormatHfIndex({{"transformer.a", "x"}, {"b", "y"}, {"c", "x"}}, 0));
  auto opened = HfFolder::Open(directory_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const HfFolder folder = *std::move(opened);  // what it points to moves along
  EXPECT_EQ(folder.Find("transformer.a")->dtype, "F32");
  EXPECT_EQ(folder.Find("transformer.b")->dtype, "F16");  // the prefix may be missing
  EXPECT_EQ(folder.Find("a"), nullptr);
  EXPECT_EQ(folder.Find("c")->bytes.size(), 2U);
}

TEST_F(HfFolderTest, RequiresShapeAndFormatNamingBoth) {
  WriteShard("model.safetensors", {Zeros("a", "BF16", {2, 3}), Zeros("i", "I32", {2})});
  const HfFolder folder = HfFolder::Open(directory_.string()).value();
  const std::int64_t shape[] = {2, 3};
  EXPECT_EQ(folder.Require("a", shape).value(), folder.Find("a"));
  EXPECT_EQ(folder.Require("b", shape).status().message(), "its weights must hold b, they do not");
  EXPECT_EQ(folder.Require("a", std::span(shape).first(1)).status().message(),
            "a must be F32, BF16 or F16 of shape [2], it is BF16 of shape [2,3]");
  EXPECT_EQ(folder.Require("i", std::span(shape).first(1)).status().message(),
            "i must be F32, BF16 or F16 of shape [2], it is I32 of shape [2]");
}

TEST_F(HfFolderTest, KnowsTheFormatThatTensorsHaveInCommon) {
  WriteShard("model.safetensors", {Zeros("a", "BF16", {1}), Zeros("b", "BF16", {1}),
                                   Zeros("h", "F16", {1}), Zeros("i", "I32", {1})});
  const HfFolder folder = HfFolder::Open(directory_.string()).value();
  const auto common = [&](std::vector<std::string> names) { return folder.CommonFormat(names); };
  EXPECT_EQ(common({"a", "absent", "b"}), FloatFormat::kBf16);
  EXPECT_EQ(common({"a", "h"}), FloatFormat::kF32);
  EXPECT_EQ(common({"absent"}), FloatFormat::kF32);
  EXPECT_EQ(common({"a", "i"}), FloatFormat::kF32);
}

TEST_F(HfFolderTest, NamesEveryDefect) {
  EXPECT_EQ(OpenError(), directory_.string() +
                             " holds neither model.safetensors nor model.safetensors.index.json");
  WriteShard("x", {Zeros("a", "F32", {1})});
  WriteShard("y", {Zeros("b", "F32", {1})});

  Write(kIndexFile, "{}");
  EXPECT_THAT(OpenError(), HasSubstr("/model.safetensors.index.json: weight_map is missing"));

  Write(kIndexFile, FormatHfIndex({{"a", "x"}, {"b", "absent"}}, 0));
  EXPECT_THAT(OpenError(), HasSubstr("index.json: names absent, which is not in the folder"));

  Write(kIndexFile, FormatHfIndex({{"a", "y"}, {"b", "x"}}, 0));
  EXPECT_THAT(OpenError(), HasSubstr("index.json: says that y holds a, which it does not"));

  Write(kIndexFile, FormatHfIndex({{"a", "x"}, {"c", "x"}}, 0));
  EXPECT_THAT(OpenError(), HasSubstr("says that x holds c, which it does not"));

  WriteShard("y", {Zeros("a", "F32", {1}), Zeros("b", "F32", {1})});
  Write(kIndexFile, FormatHfIndex({{"a", "x"}, {"b", "y"}}, 0));
  EXPECT_THAT(OpenError(), HasSubstr("/y: holds a, which x of the same folder holds too"));

  Write("y", "garbage");
  EXPECT_THAT(OpenError(), HasSubstr("/y: too short for a safetensors file"));
}

TEST_F(HfFolderTest, WhereLinksLeadIsTheCallersDecision) {
  WriteShard("real", {Zeros("a", "F32", {1})});
  fs::create_symlink("real", directory_ / "model.safetensors");
  EXPECT_TRUE(HfFolder::Open(directory_.string()).ok());
  const auto refused = HfFolder::Open(directory_.string(),
                                      [](const std::string& path) -> absl::StatusOr<std::string> {
                                        return absl::PermissionDeniedError(path);
                                      });
  EXPECT_EQ(refused.status(),
            absl::PermissionDeniedError((directory_ / "model.safetensors").string()));
}

}  // namespace
}  // namespace takt::checkpoint
