// SPDX-License-Identifier: Apache-2.0
#include "cli/data/tokenizer_option.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {

namespace {

using Id = std::optional<std::int32_t>;

// Returns the id that the user gave as an id or as a token; "none" is nullopt.
absl::StatusOr<Id> GivenToken(const char* option, const std::string& text,
                              const tokenizer::Tokenizer& tokenizer) {
  if (text == "none") return Id();
  std::int32_t id = 0;
  if (absl::SimpleAtoi(text, &id)) {
    if (id >= 0 && id < tokenizer.vocab_size()) return Id(id);
    return InvalidField(
        {.field = option,
         .value = text,
         .rule = absl::StrCat("must be below the size of the vocabulary, ", tokenizer.vocab_size()),
         .fix = "give another id, or the token itself"});
  }
  const Id found = tokenizer.FindToken(text);
  if (found.has_value()) return found;
  return InvalidField({.field = option,
                       .value = text,
                       .rule = "must be a token of the vocabulary",
                       .fix = "give it as the tokenizer's file has it, or give its id"});
}

}  // namespace

absl::StatusOr<Id> BeginOfDocument(const std::string& text, const tokenizer::Tokenizer& tokenizer,
                                   Id of_folder) {
  if (text.empty()) return of_folder;
  return GivenToken("--bos", text, tokenizer);
}

absl::StatusOr<Id> EndOfDocument(const std::string& text,
                                 const tokenizer::TokenizerFolder& folder) {
  if (!text.empty()) return GivenToken("--eod", text, *folder.tokenizer);
  if (folder.end_of_document.has_value()) return folder.end_of_document;
  return InvalidField({.field = "--eod",
                       .rule = "is missing, and the tokenizer's folder names no eos_token",
                       .fix = "say which token ends a document, or none"});
}

}  // namespace takt::cli
