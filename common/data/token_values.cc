// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_values.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

template <class T>
T Load(const std::byte* bytes) {
  T value;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, bytes, sizeof(T));
  } else {
    std::byte swapped[sizeof(T)];
    std::reverse_copy(bytes, bytes + sizeof(T), swapped);
    std::memcpy(&value, swapped, sizeof(T));
  }
  return value;
}

template <class T>
std::int64_t ToId(T value) {
  if constexpr (std::integral<T>) {
    return value;
  } else {
    constexpr T kBound = 9007199254740992;  // 2^53: whole numbers below it are exact
    if (!(value > -kBound && value < kBound)) return -1;
    const auto id = static_cast<std::int64_t>(value);
    return static_cast<T>(id) == value ? id : -1;
  }
}

// Calls `visit` with a value of the type that `type` names, so that each type has a loop of its own
// that the compiler can unroll.
template <class Visit>
auto Dispatch(TokenType type, Visit visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(std::uint8_t{});
    case TokenType::kI8:
      return visit(std::int8_t{});
    case TokenType::kU16:
      return visit(std::uint16_t{});
    case TokenType::kI16:
      return visit(std::int16_t{});
    case TokenType::kU32:
      return visit(std::uint32_t{});
    case TokenType::kI32:
      return visit(std::int32_t{});
    case TokenType::kI64:
      return visit(std::int64_t{});
    case TokenType::kF32:
      return visit(float{});
    case TokenType::kF64:
      break;
  }
  return visit(double{});
}

}  // namespace

std::string_view NameOf(TokenType type) {
  constexpr std::string_view kNames[] = {"uint8", "int8",  "uint16",  "int16",  "uint32",
                                         "int32", "int64", "float32", "float64"};
  return kNames[static_cast<int>(type)];
}

int WidthOf(TokenType type) {
  return Dispatch(type, [](auto zero) { return static_cast<int>(sizeof(zero)); });
}

TokenValues::TokenValues(TokenType type, std::span<const std::byte> bytes)
    : type_(type), bytes_(bytes), size_(std::ssize(bytes) / WidthOf(type)) {
  TAKT_CHECK(std::ssize(bytes) % WidthOf(type) == 0);
}

std::int64_t TokenValues::At(std::int64_t i) const {
  return Dispatch(type_, [&](auto zero) {
    return ToId(Load<decltype(zero)>(bytes_.data() + i * sizeof(zero)));
  });
}

std::string TokenValues::Shown(std::int64_t i) const {
  return Dispatch(type_, [&](auto zero) {
    const auto value = Load<decltype(zero)>(bytes_.data() + i * sizeof(zero));
    if constexpr (sizeof(zero) == 1)
      return absl::StrCat(int{value});
    else
      return absl::StrCat(value);
  });
}

void TokenValues::Read(std::int64_t begin, std::span<std::int32_t> out) const {
  TAKT_CHECK(begin >= 0 && begin + std::ssize(out) <= size_);
  Dispatch(type_, [&](auto zero) {
    const std::byte* from = bytes_.data() + begin * sizeof(zero);
    for (std::int32_t& value : out) {
      value = static_cast<std::int32_t>(Load<decltype(zero)>(from));
      from += sizeof(zero);
    }
  });
}

std::int64_t TokenValues::FindOutside(std::int64_t limit, bool allow_ignored) const {
  if (type_ == TokenType::kU8 && limit >= 1 << 8) return size_;
  if (type_ == TokenType::kU16 && limit >= 1 << 16) return size_;
  return Dispatch(type_, [&](auto zero) {
    const std::byte* at = bytes_.data();
    for (std::int64_t i = 0; i < size_; ++i, at += sizeof(zero)) {
      const std::int64_t id = ToId(Load<decltype(zero)>(at));
      const bool inside = id >= 0 && id < limit;
      if (!inside && !(allow_ignored && id == kIgnoredTarget)) return i;
    }
    return size_;
  });
}

std::int64_t TokenValues::Largest() const {
  return Dispatch(type_, [&](auto zero) {
    std::int64_t largest = -1;
    const std::byte* at = bytes_.data();
    for (std::int64_t i = 0; i < size_; ++i, at += sizeof(zero)) {
      largest = std::max(largest, ToId(Load<decltype(zero)>(at)));
    }
    return largest;
  });
}

}  // namespace takt::data
