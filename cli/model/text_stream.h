// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace takt::cli {

// Turns tokens into text as they come. A character may take several tokens, and the text of a token
// may depend on the ones before it, so some tokens give no text and others that of several.
class TextStream {
 public:
  // before: the tokens before the first one, of which no text is returned. tokenizer: borrowed.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> before);

  // Returns the text that this token completes, in UTF-8.
  std::string Add(std::int32_t id);
  // Returns what is left when no more tokens come. A beginning of a character becomes U+FFFD.
  std::string Finish();

 private:
  std::string Take(const std::string& now, std::size_t shown_bytes);
  std::string Decode(std::size_t end) const;

  const tokenizer::Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;
  std::size_t first_ = 0;  // decoding begins here, so that it does not take longer and longer
  std::size_t shown_ = 0;  // the text of the ids before it was returned
};

}  // namespace takt::cli
