// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_folder.h"

namespace takt::cli {

// Returns the id that comes before documents and prompts. text: as the user gave it: an id, a
// token, "none" (nullopt), or nothing, which means what the tokenizer's folder says. Errors:
// kInvalidArgument (FieldError "--bos"): there is no such token.
absl::StatusOr<std::optional<std::int32_t>> BeginOfDocument(const std::string& text,
                                                            const tokenizer::Tokenizer& tokenizer,
                                                            std::optional<std::int32_t> of_folder);

// Returns the id that ends documents. text: as the user gave it: an id, a token, "none" (nullopt),
// or nothing, which means the folder's own. Errors: kInvalidArgument (FieldError "--eod"): there is
// no such token, or the folder names none.
absl::StatusOr<std::optional<std::int32_t>> EndOfDocument(const std::string& text,
                                                          const tokenizer::TokenizerFolder& folder);

}  // namespace takt::cli
