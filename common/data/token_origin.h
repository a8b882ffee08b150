// SPDX-License-Identifier: Apache-2.0
// The small file beside a token file that `takt data tokenize` wrote: FILE.json says which text and
// which tokenizer the tokens are of. docs/data.md has the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/data/corpus.h"

namespace takt::data {

struct TokenOrigin {
  std::string tokenizer;                          // the name of the tokenizer's file
  std::string tokenizer_hash;                     // XXH3-128 of that file
  std::int64_t vocab = 0;                         // every id is below it
  std::optional<std::int64_t> begin_of_document;  // the id before each document
  std::optional<std::int64_t> end_of_document;    // the id after each document
  std::int64_t documents = 0;
  std::int64_t tokens = 0;    // with those that begin and end documents
  std::int64_t bytes = 0;     // of the documents' UTF-8; bits per byte are of these
  std::int64_t replaced = 0;  // U+FFFD in them that stand for bytes that were not UTF-8

  bool operator==(const TokenOrigin&) const = default;
};

std::string FormatTokenOrigin(const TokenOrigin& origin);

// Errors: kInvalidArgument, a clause about the text.
absl::StatusOr<TokenOrigin> ParseTokenOrigin(std::string_view text);

// Returns the path of the file beside `token_file`.
std::string TokenOriginPath(std::string_view token_file);

// Returns nullopt if there is no such file. Errors: kInvalidArgument, kInternal, ..., naming the
// file.
absl::StatusOr<std::optional<TokenOrigin>> ReadTokenOrigin(std::string_view token_file);

// Returns how many bytes of text a token of the corpus stands for: one in files of bytes, else what
// the files beside its files say. nullopt: a file has none beside it. Errors: as ReadTokenOrigin;
// kFailedPrecondition (it is of other tokens).
absl::StatusOr<std::optional<double>> BytesPerToken(const Corpus& corpus);

}  // namespace takt::data
