// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in a text before anything else happens to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace takt::tokenizer {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;  // it is found in the normalized text, not in the raw one
};

// Immutable: safe from any thread.
class AddedTokens {
 public:
  // Precondition: no content is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
  };
  // Returns the first token in text[from, ...), the longest one if several begin there. Without
  // `special` the content of a special token is text; other tokens are not found inside it.
  std::optional<Found> Find(std::string_view text, std::size_t from, bool special) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
  bool has_any_ = false, has_plain_ = false;
};

}  // namespace takt::tokenizer
