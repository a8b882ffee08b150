// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/utf8.h"

#include <cstring>

namespace takt::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the length of the character at the beginning of `text`, or, as a negative number, that of
// the malformed sequence there. Precondition: `text` is not empty.
int Measure(std::string_view text) {
  const auto byte = [text](int i) -> unsigned {
    return static_cast<std::size_t>(i) < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates, and what is above U+10FFFF.
  unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (byte(i) < least || byte(i) > most) return -i;
    least = 0x80;
    most = 0xBF;
  }
  return length;
}

// Returns the length of a beginning of `text` that is ASCII, looking at whole words of 8 bytes.
std::size_t AsciiWords(std::string_view text) {
  std::size_t length = 0;
  for (std::uint64_t word = 0; length + sizeof(word) <= text.size(); length += sizeof(word)) {
    std::memcpy(&word, text.data() + length, sizeof(word));
    if ((word & 0x8080808080808080U) != 0) break;
  }
  return length;
}

// Returns the length of the longest beginning that is UTF-8.
std::size_t ValidLength(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    length += AsciiWords(text.substr(length));
    if (length == text.size()) break;
    const int measured = Measure(text.substr(length));
    if (measured < 0) break;
    length += static_cast<std::size_t>(measured);
  }
  return length;
}

}  // namespace

CleanText ReplaceInvalidUtf8(std::string_view text, std::string& storage) {
  std::size_t valid = ValidLength(text);
  if (valid == text.size()) return {.text = text};
  CleanText clean;
  storage.clear();
  while (true) {
    storage.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    storage.append(kReplacement);
    ++clean.replaced;
    text.remove_prefix(static_cast<std::size_t>(-Measure(text)));
    valid = ValidLength(text);
  }
  clean.text = storage;
  return clean;
}

}  // namespace takt::tokenizer
