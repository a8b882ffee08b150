// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace takt {

// Returns the longest beginning of `text` of at most `most` bytes that ends between two characters
// of UTF-8. Half a character would make a message unreadable.
constexpr std::string_view FirstBytes(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace takt
