// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/utf8.h"

#include "gtest/gtest.h"

namespace takt::tokenizer {
namespace {

// Returns the clean text with '?' for each U+FFFD.
std::string Shown(std::string_view bytes) {
  std::string storage;
  const CleanText clean = ReplaceInvalidUtf8(bytes, storage);
  std::string shown(clean.text);
  std::int64_t found = 0;
  for (std::size_t at; (at = shown.find("\xEF\xBF\xBD")) != std::string::npos; ++found) {
    shown.replace(at, 3, "?");
  }
  EXPECT_EQ(found, clean.replaced);
  return shown;
}

TEST(ReplaceInvalidUtf8, LeavesUtf8InItsPlace) {
  std::string storage;
  const std::string text = "plain ASCII of some words, \xC3\xA9 \xE6\x97\xA5 \xF0\x9F\x99\x82";
  const CleanText clean = ReplaceInvalidUtf8(text, storage);
  EXPECT_EQ(clean.text.data(), text.data());
  EXPECT_EQ(clean.text, text);
  EXPECT_EQ(clean.replaced, 0);
  EXPECT_EQ(ReplaceInvalidUtf8("", storage).text, "");
}

TEST(ReplaceInvalidUtf8, ReplacesAsPythonDoes) {
  EXPECT_EQ(Shown("\xFFtext of more than eight bytes\xFE"), "?text of more than eight bytes?");
  EXPECT_EQ(Shown("\xC3(x"), "?(x");
  // What could have become a character is replaced as one.
  EXPECT_EQ(Shown("\xE2\x82 a"), "? a");
  EXPECT_EQ(Shown("\xF0\x9F\x98"), "?");
  // Surrogates, overlong forms and numbers above U+10FFFF could not.
  EXPECT_EQ(Shown("\xED\xA0\x80"), "???");
  EXPECT_EQ(Shown("\xC0\xAF"), "??");
  EXPECT_EQ(Shown("\xE0\x80\x80"), "???");
  EXPECT_EQ(Shown("\xF4\x90\x80\x80"), "????");
}

}  // namespace
}  // namespace takt::tokenizer
