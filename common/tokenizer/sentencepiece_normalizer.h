// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/sentencepiece_model.h"
#include "common/tokenizer/trie.h"

namespace takt::tokenizer {

// U+2581, which stands for a blank in pieces.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

// Rewrites a text as a model of SentencePiece wants it: by its own rules, without extra blanks, and
// with kSpaceSymbol for each blank. Immutable: safe from any thread.
//
// The rules (`charsmap`) are a table of replacements: u32 size of a trie; the trie; texts, each
// ended by a zero byte. The trie is a double array of darts-clone, u32 units: a leaf holds the
// place of a text.
class SentencePieceNormalizer {
 public:
  // model: borrowed for the life of this object. Errors: kInvalidArgument, a clause about the
  // rules.
  static absl::StatusOr<SentencePieceNormalizer> Create(const SentencePieceModel& model);

  // Replaces `normalized` by the normalized text. Precondition: `text` is UTF-8.
  void Normalize(std::string_view text, std::string& normalized) const;

 private:
  explicit SentencePieceNormalizer(const SentencePieceModel& model) : model_(&model) {}

  // A replacement, and how many bytes of the text it replaces.
  struct Prefix {
    std::string_view text;
    std::size_t length = 0;
  };
  Prefix NormalizePrefix(std::string_view text) const;
  Prefix LongestRule(std::string_view text) const;
  std::uint32_t UnitAt(std::uint32_t index) const;

  const SentencePieceModel* model_;
  std::string_view rules_;         // the units of the double array
  std::string_view replacements_;  // texts that end with a zero byte
  Trie user_defined_;              // pieces that stay as they are
};

}  // namespace takt::tokenizer
