// SPDX-License-Identifier: Apache-2.0
#include "cli/model/text_stream.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "common/tokenizer/utf8.h"

namespace takt::cli {
namespace {

// The text of a token may depend on so many tokens before it.
constexpr std::size_t kContext = 8;
// After so many tokens without a whole character there are none to come.
constexpr std::size_t kMostPending = 16;

// Returns whether the text ends with the beginning of a character.
bool EndsInsideCharacter(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const char byte = text[text.size() - back];
    const bool continues = (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
    if (!continues) return tokenizer::CharLength(byte) > back;
  }
  return false;
}

}  // namespace

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> before)
    : tokenizer_(tokenizer),
      ids_(std::move(before)),
      first_(ids_.size() - std::min(ids_.size(), kContext)),
      shown_(ids_.size()) {}

std::string TextStream::Add(std::int32_t id) {
  ids_.push_back(id);
  const std::string shown = Decode(shown_), now = Decode(ids_.size());
  const bool waits = now.size() <= shown.size() || EndsInsideCharacter(now);
  if (waits && ids_.size() - shown_ < kMostPending) return "";
  return Take(now, shown.size());
}

std::string TextStream::Finish() { return Take(Decode(ids_.size()), Decode(shown_).size()); }

std::string TextStream::Take(const std::string& now, std::size_t shown_bytes) {
  std::string storage;
  const std::string fresh = now.substr(std::min(shown_bytes, now.size()));
  shown_ = ids_.size();
  first_ = std::max(first_, shown_ - std::min(shown_, kContext));
  return std::string(tokenizer::ReplaceInvalidUtf8(fresh, storage).text);
}

std::string TextStream::Decode(std::size_t end) const {
  return tokenizer_.Decode(std::span(ids_).subspan(first_, end - first_));
}

}  // namespace takt::cli
