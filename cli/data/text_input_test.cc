// SPDX-License-Identifier: Apache-2.0
#include "cli/data/text_input.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"

namespace takt::cli {
namespace {

using testing::HasSubstr;

// More than one unit of lines, the last one without a newline.
std::string ManyLines() {
  std::string text;
  for (int i = 0; text.size() < 2500000; ++i) absl::StrAppend(&text, "line ", i, " of many\n");
  return text + "the end";
}

std::vector<TextUnit> ReadAll(TextInput input) {
  std::vector<TextUnit> units;
  for (auto unit = input.Next().value(); unit.has_value(); unit = input.Next().value()) {
    units.push_back(*std::move(unit));
  }
  return units;
}

std::string TextOf(const std::vector<TextUnit>& units) {
  std::string text;
  for (const TextUnit& unit : units) {
    for (const TextPart& part : unit.parts) text += part.text();
  }
  return text;
}

TEST(FindInputFiles, TakesFilesAndDirectoriesInTheirOrder) {
  const TestDirectory directory;
  std::filesystem::create_directories(directory.Path("d/sub"));
  (void)directory.Write("d/b.txt", "b");
  (void)directory.Write("d/a.txt", "aa");
  (void)directory.Write("d/sub/c.txt", "c");
  (void)directory.Write("d/.hidden", "h");
  const std::string last = directory.Write("0.txt", "0");
  const auto files = FindInputFiles({directory.Path("d"), last}).value();
  std::vector<std::string> paths;
  for (const InputFile& file : files) paths.push_back(file.path);
  EXPECT_THAT(paths, testing::ElementsAre(directory.Path("d/a.txt"), directory.Path("d/b.txt"),
                                          directory.Path("d/sub/c.txt"), last));
  EXPECT_EQ(files[0].bytes, 2);
  EXPECT_THAT(std::string(FindInputFiles({directory.Path("no")}).status().message()),
              HasSubstr("No such file"));
  std::filesystem::create_directories(directory.Path("empty"));
  EXPECT_THAT(std::string(FindInputFiles({directory.Path("empty")}).status().message()),
              HasSubstr("holds no files"));
}

TEST(TextInput, CutsAtTheEndsOfLines) {
  const TestDirectory directory;
  const std::string text = ManyLines();
  const auto files = FindInputFiles({directory.Write("a", text), directory.Write("b", "x\ny\n")});
  const auto units = ReadAll(TextInput(*files, DocumentKind::kLines, {}));
  ASSERT_EQ(units.size(), 3U);
  EXPECT_EQ(TextOf(units), text + "x\ny\n");
  EXPECT_TRUE(units[0].parts[0].text().ends_with('\n'));
  // The last unit goes on in the next file.
  EXPECT_EQ(units[2].parts.size(), 2U);
}

TEST(TextInput, GoesOnAtTheEndOfAnyUnit) {
  const TestDirectory directory;
  const auto files =
      FindInputFiles({directory.Write("a", ManyLines()), directory.Write("b", "x\ny\n")}).value();
  const auto units = ReadAll(TextInput(files, DocumentKind::kLines, {}));
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto rest = ReadAll(TextInput(files, DocumentKind::kLines, units[i].next));
    EXPECT_EQ(rest.size(), units.size() - i - 1);
    EXPECT_EQ(TextOf(rest),
              TextOf({units.begin() + static_cast<std::ptrdiff_t>(i) + 1, units.end()}));
  }
}

TEST(TextInput, AFileIsOnePartWhateverItsSize) {
  const TestDirectory directory;
  const auto files = FindInputFiles({directory.Write("a", "1\n2\n"), directory.Write("none", ""),
                                     directory.Write("b", ManyLines())});
  const auto units = ReadAll(TextInput(*files, DocumentKind::kFiles, {}));
  ASSERT_EQ(units.size(), 1U);
  ASSERT_EQ(units[0].parts.size(), 2U);
  EXPECT_EQ(units[0].parts[0].text(), "1\n2\n");
  EXPECT_EQ(units[0].parts[1].text(), ManyLines());
}

TEST(TextInput, NoticesAFileThatChanges) {
  const TestDirectory directory;
  const auto files = FindInputFiles({directory.Write("a", "text")}).value();
  (void)directory.Write("a", "another text");
  TextInput input(files, DocumentKind::kFiles, {});
  EXPECT_THAT(std::string(input.Next().status().message()), HasSubstr("changed while it was read"));
}

}  // namespace
}  // namespace takt::cli
