// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace takt::tokenizer {

struct CleanText {
  std::string_view text;      // UTF-8
  std::int64_t replaced = 0;  // how many U+FFFD stand for bytes that were not
};

// Returns `text` with U+FFFD for each malformed sequence of bytes, as Python's
// bytes.decode("utf-8", errors="replace") does: the longest prefix of a character that could have
// been completed is one sequence, and so is every other wrong byte. The result is `text` itself if
// it is UTF-8 already, else a view of `storage`.
CleanText ReplaceInvalidUtf8(std::string_view text, std::string& storage);

// Returns the bytes of the character that begins with `first`. Precondition: it begins one.
inline std::size_t CharLength(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace takt::tokenizer
