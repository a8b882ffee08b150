// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/data/corpus.h"
#include "common/tokenizer/tokenizer.h"

namespace takt::cli {

struct DocumentText {
  std::int64_t tokens = 0;  // without the one that ends it
  std::string text;         // UTF-8, of the first tokens only
  bool is_whole = true;     // all tokens are in `text`
};

// Returns the first `count` documents of a corpus as text. end: the id after each document; without
// it the corpus is one document.
std::vector<DocumentText> FirstDocuments(const data::Corpus& corpus,
                                         const tokenizer::Tokenizer& tokenizer,
                                         std::optional<std::int64_t> end, int count);

}  // namespace takt::cli
