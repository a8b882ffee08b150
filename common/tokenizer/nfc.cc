// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/nfc.h"

#include <stdlib.h>
#include <utf8proc.h>

#include <algorithm>
#include <memory>

#include "common/base/status.h"

namespace takt::tokenizer {
namespace {

// utf8proc holds a text as 32-bit characters, more than once, so it gets pieces.
constexpr std::size_t kPieceBytes = 64 << 10;

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }

void AppendNfc(std::string_view text, std::string& out) {
  if (std::all_of(text.begin(), text.end(), IsAscii)) {
    out.append(text);
    return;
  }
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(composed, free);
  TAKT_CHECK(length >= 0);  // it fails only on text that is not UTF-8, and without memory
  out.append(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(length));
}

}  // namespace

std::string_view ToNfc(std::string_view text, std::string& storage) {
  if (std::all_of(text.begin(), text.end(), IsAscii)) return text;
  storage.clear();
  storage.reserve(text.size());
  while (!text.empty()) {
    // No character combines with an ASCII character after it, so a piece may end before one.
    std::size_t end = std::min(kPieceBytes, text.size());
    while (end < text.size() && !IsAscii(text[end])) ++end;
    AppendNfc(text.substr(0, end), storage);
    text.remove_prefix(end);
  }
  return storage;
}

}  // namespace takt::tokenizer
