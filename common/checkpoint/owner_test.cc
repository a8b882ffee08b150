// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/owner.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/checkpoint/layout.h"
#include "gtest/gtest.h"

namespace takt::checkpoint {
namespace {

const Owner kOwner{.job_id = "0123456789abcdef", .job = "kjv-gpt", .generation = Generation(3)};
constexpr char kText[] =
    "takt checkpoint owner 1\njob_id 0123456789abcdef\njob kjv-gpt\ngeneration 3\n";

TEST(OwnerText, IsThatOfTheDocument) {
  EXPECT_EQ(FormatOwner(kOwner), kText);
  const absl::StatusOr<Owner> parsed = ParseOwner(kText, "owner");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, kOwner);
}

TEST(OwnerText, NothingElseIsAccepted) {
  const std::string text = kText;
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_TRUE(absl::IsDataLoss(ParseOwner(text.substr(0, length), "owner").status())) << length;
  for (const std::string& wrong :
       {text + "\n", "\n" + text,
        std::string("takt checkpoint owner 2\njob_id a\njob b\ngeneration 1\n"),
        std::string("takt checkpoint owner 1\njob_id \njob b\ngeneration 1\n"),
        std::string("takt checkpoint owner 1\njob_id a\njob b\ngeneration +1\n")}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseOwner(wrong, "owner").status())) << wrong;
  }
}

TEST(EpochText, IsReadForItsGenerationAlone) {
  std::string directory = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  EXPECT_EQ(ReadEpoch(directory, kOwner).value(), 0);
  Owner noted = kOwner;
  noted.epoch = 12;
  const std::string text = FormatEpoch(noted);
  EXPECT_EQ(text, "takt checkpoint epoch 1\njob_id 0123456789abcdef\ngeneration 3\nepoch 12\n");
  const std::string path = directory + "/" + kEpochFile;
  std::ofstream(path) << text;
  EXPECT_EQ(ReadEpoch(directory, kOwner).value(), 12);
  Owner other = kOwner;
  other.generation = Generation(4);
  EXPECT_EQ(ReadEpoch(directory, other).value(), 0);
  for (std::size_t length = 0; length < text.size(); ++length) {
    std::ofstream(path) << text.substr(0, length);
    EXPECT_TRUE(absl::IsDataLoss(ReadEpoch(directory, kOwner).status())) << length;
  }
  std::filesystem::remove_all(directory);
}

TEST(OwnerText, ADirectoryWithoutTheFileHasNoOwner) {
  std::string directory = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  absl::StatusOr<std::optional<Owner>> owner = ReadOwner(directory);
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_FALSE(owner->has_value());
  std::ofstream(directory + "/" + kOwnerFile) << kText;
  owner = ReadOwner(directory);
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(*owner, kOwner);
  std::ofstream(directory + "/" + kOwnerFile) << std::string(10'000, 'x');
  EXPECT_TRUE(absl::IsDataLoss(ReadOwner(directory).status()));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace takt::checkpoint
