// SPDX-License-Identifier: Apache-2.0
// The alphabet of byte-level vocabularies: a token is written with one printable character for each
// of its bytes. ASCII without controls and blanks, and most of Latin-1, stand for their own byte;
// the other bytes are U+0100 and up, in their order ("\u0120" is a blank).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace takt::tokenizer {

// Returns the bytes that a token stands for, or nullopt if it has a character that is not of the
// alphabet. Such a token stands for its own UTF-8, and no text leads to it but as an added token.
std::optional<std::string> BytesOfToken(std::string_view token);

// Returns the token that stands for one byte.
std::string TokenOfByte(unsigned char byte);

}  // namespace takt::tokenizer
