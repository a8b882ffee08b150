// SPDX-License-Identifier: Apache-2.0
// A sequence of numbers of one type. Every token file consists of such sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace takt::data {

inline constexpr std::int32_t kIgnoredTarget = -100;
inline constexpr std::int32_t kPaddingToken = 0;  // with targets that are ignored

// All types are little-endian.
enum class TokenType : std::uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64, kF32, kF64 };

std::string_view NameOf(TokenType type);  // "uint16"
int WidthOf(TokenType type);              // bytes

// Borrows the bytes, which need no alignment. Immutable: safe from any thread.
class TokenValues {
 public:
  TokenValues() = default;
  // Precondition: `bytes` holds whole values.
  TokenValues(TokenType type, std::span<const std::byte> bytes);

  TokenType type() const { return type_; }
  std::int64_t size() const { return size_; }

  // The value as a token id; -1 if it is a fraction or outside the range of 64 bits.
  std::int64_t At(std::int64_t i) const;
  // The value as text.
  std::string Shown(std::int64_t i) const;

  // Copies values from `begin` on, as many as `out` holds. Precondition: they are ids below 2^31,
  // or -100.
  void Read(std::int64_t begin, std::span<std::int32_t> out) const;

  // The index of the first value that is not in 0 .. limit-1 (nor -100, if that is allowed); size()
  // if there is none.
  std::int64_t FindOutside(std::int64_t limit, bool allow_ignored) const;

  // The largest id; -1 if there are no ids.
  std::int64_t Largest() const;

 private:
  TokenType type_ = TokenType::kU8;
  std::span<const std::byte> bytes_;
  std::int64_t size_ = 0;
};

}  // namespace takt::data
