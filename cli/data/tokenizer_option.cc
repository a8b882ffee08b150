// SPDX-License-Identifier: Apache-2.0
#include "cli/data/tokenizer_option.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {

absl::StatusOr<std::optional<std::int32_t>> EndOfDocument(
    const std::string& text, const tokenizer::TokenizerFolder& folder) {
  using Id = std::optional<std::int32_t>;
  if (text == "none") return Id();
  if (text.empty()) {
    if (folder.end_of_document.has_value()) return folder.end_of_document;
    return InvalidField({.field = "--eod",
                         .rule = "is missing, and the tokenizer's folder names no eos_token",
                         .fix = "say which token ends a document, or none"});
  }
  std::int32_t id = 0;
  if (absl::SimpleAtoi(text, &id)) {
    if (id >= 0 && id < folder.tokenizer->vocab_size()) return Id(id);
    return InvalidField({.field = "--eod",
                         .value = text,
                         .rule = absl::StrCat("must be below the size of the vocabulary, ",
                                              folder.tokenizer->vocab_size()),
                         .fix = "give another id, or the token itself"});
  }
  const Id found = folder.tokenizer->FindToken(text);
  if (found.has_value()) return found;
  return InvalidField({.field = "--eod",
                       .value = text,
                       .rule = "must be a token of the vocabulary",
                       .fix = "give it as the tokenizer's file has it, or give its id"});
}

}  // namespace takt::cli
