// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/tokenizer/tokenizer.h"

namespace takt::tokenizer {

// Makes the tokenizer of files of format `bytes`: each byte is a token, and there are no others.
std::unique_ptr<const Tokenizer> CreateByteTokenizer();

}  // namespace takt::tokenizer
