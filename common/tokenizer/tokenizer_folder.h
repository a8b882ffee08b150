// SPDX-License-Identifier: Apache-2.0
// Opens the tokenizer of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace takt::tokenizer {

struct TokenizerFolder {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::string file;  // the name of the file that it was read from: "tokenizer.json"
  std::string hash;  // XXH3-128 of that file
  // The token that ends a document: eos_token of tokenizer_config.json, else the control piece of a
  // SentencePiece model, else eos_token_id of config.json (the first, if it is a list).
  std::optional<std::int32_t> end_of_document;
  // The token before a document and before a prompt: bos_token of tokenizer_config.json if
  // add_bos_token is true there, none if it is false. Where it is absent: the token with which the
  // template of tokenizer.json begins, or the control piece of a SentencePiece model.
  std::optional<std::int32_t> begin_of_document;
};

// Reads tokenizer.json, or tokenizer.model if the former is absent or of a kind that cannot be
// read. field: what names the folder in errors ("--tokenizer"). Errors, all with a FieldError:
// kInvalidArgument (a file is malformed or not supported), kFailedPrecondition (the folder or its
// files cannot be read, or there is no tokenizer).
absl::StatusOr<TokenizerFolder> OpenTokenizerFolder(const std::string& field,
                                                    const std::string& folder);

}  // namespace takt::tokenizer
