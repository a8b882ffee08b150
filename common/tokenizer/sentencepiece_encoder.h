// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/tokenizer/tokenizer.h"

namespace takt::tokenizer {

class SentencePieceTokenizer;

// Borrows the tokenizer.
std::unique_ptr<Encoder> NewSentencePieceEncoder(const SentencePieceTokenizer& tokenizer);

}  // namespace takt::tokenizer
