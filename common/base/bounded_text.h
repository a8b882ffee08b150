// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace takt {

// Returns the longest prefix of `text` that has at most `most` bytes and ends between two UTF-8
// characters. Half a character would make a message unreadable.
constexpr std::string_view FirstBytes(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// Returns `text`, or its first bytes and "..." if it has more than `most` bytes.
inline std::string Shortened(std::string_view text, std::size_t most) {
  return std::string(FirstBytes(text, most)) + (text.size() > most ? "..." : "");
}

}  // namespace takt
