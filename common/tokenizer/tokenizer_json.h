// SPDX-License-Identifier: Apache-2.0
// Reads Hugging Face's tokenizer.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/byte_level.h"

namespace takt::tokenizer {

// Takes byte-level BPE: normalizers none and NFC; pre-tokenizers ByteLevel, or a Sequence of Split,
// Digits and at last ByteLevel; merges as pairs and as strings. Truncation and padding are ignored,
// and only the token before a text is taken from the post-processor. Errors: kInvalidArgument
// (FieldError, `where` = `name`): the text is not JSON or has another shape, a part that would
// change ids is not among the above (its name is in the message), or vocabulary and merges do not
// fit each other.
absl::StatusOr<ByteLevelModel> ParseTokenizerJson(std::string_view text, std::string_view name);

}  // namespace takt::tokenizer
