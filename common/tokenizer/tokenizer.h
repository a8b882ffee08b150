// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back. docs/data.md says which kinds of tokenizers there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace takt::tokenizer {

// Turns texts into ids. It keeps a cache, so use one object for many texts. It borrows the
// Tokenizer that made it. One caller at a time.
class Encoder {
 public:
  virtual ~Encoder() = default;

  // Appends the ids of `text` to `ids`. text: UTF-8 (ReplaceInvalidUtf8 makes it so) of at most
  // kMaxTextBytes. Errors: kInvalidArgument, a clause about the text or the tokenizer: the text is
  // too long, or the tokenizer's regular expression does not come to an end on it.
  virtual absl::Status Encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
};

inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

struct EncodeOptions {
  // The content of a special token, such as <|endoftext|>, becomes the token. It is off for
  // training data: no text from elsewhere may end a document or begin an answer. SentencePiece
  // models never find special tokens in text.
  bool special_tokens = false;
};

// Immutable: safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::unique_ptr<Encoder> NewEncoder(const EncodeOptions& options) const = 0;

  // Returns the bytes of the ids. They may begin or end inside a character. An id that the
  // vocabulary lacks has no bytes.
  virtual std::string Decode(std::span<const std::int32_t> ids) const = 0;

  // Every id is below it.
  virtual std::int32_t vocab_size() const = 0;

  // Returns the id of the token with this content, as the tokenizer's file writes it.
  virtual std::optional<std::int32_t> FindToken(std::string_view content) const = 0;
};

}  // namespace takt::tokenizer
