// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/byte_alphabet.h"

#include <array>

namespace takt::tokenizer {
namespace {

constexpr int kFirstOther = 256;  // the character of the first byte that does not stand for itself
constexpr int kNumOthers = 68;

struct Alphabet {
  std::array<int, 256> of_byte{};                            // character
  std::array<int, kFirstOther + kNumOthers> of_character{};  // byte; -1: it stands for none
};

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.of_character) byte = -1;
  int next = kFirstOther;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = StandsForItself(byte) ? byte : next++;
    alphabet.of_byte[static_cast<std::size_t>(byte)] = character;
    alphabet.of_character[static_cast<std::size_t>(character)] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<std::string> BytesOfToken(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); ++i) {
    auto character = static_cast<std::size_t>(static_cast<unsigned char>(token[i]));
    // All characters of the alphabet have one or two bytes.
    if (character >= 0x80) {
      if ((character & 0xE0) != 0xC0 || i + 1 == token.size()) return std::nullopt;
      const auto next = static_cast<unsigned char>(token[++i]);
      character = (character & 0x1F) << 6 | (next & 0x3FU);
    }
    if (character >= kAlphabet.of_character.size()) return std::nullopt;
    const int byte = kAlphabet.of_character[character];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string TokenOfByte(unsigned char byte) {
  const int character = kAlphabet.of_byte[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

}  // namespace takt::tokenizer
