// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/float_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "common/base/status.h"

namespace takt::checkpoint {
namespace {

constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr int kDroppedBits = 13;  // bits of the fraction that are dropped: f32 has 23, f16 has 10

struct Names {
  std::string_view dtype, torch;
};
constexpr Names kNames[] = {  // by FloatFormat
    {"?", "?"},
    {"F32", "float32"},
    {"BF16", "bfloat16"},
    {"F16", "float16"}};

std::optional<FloatFormat> Find(std::string_view name, std::string_view (*name_of)(FloatFormat)) {
  const auto* found = std::ranges::find(kFloatFormats, name, name_of);
  return found == std::end(kFloatFormats) ? std::nullopt : std::optional(*found);
}

float FromBf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

std::uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    // If only the lower half holds the payload, truncation would turn the NaN into infinity.
    const bool lost = (bits & 0x007f0000) == 0;
    return static_cast<std::uint16_t>(bits >> 16 | (lost ? 0x40 : 0));
  }
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromF16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1f;
  const std::uint32_t fraction = half & 0x3ff;
  if (exponent == 0) {  // zero, or a multiple of the smallest number
    const auto size = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
    return std::bit_cast<float>(sign | size);
  }
  const std::uint32_t wide = exponent == 0x1f ? kInfinity : (exponent + 127 - 15) << 23;
  return std::bit_cast<float>(sign | wide | fraction << kDroppedBits);
}

std::uint16_t ToF16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t size = bits & ~kSign;
  if (size > kInfinity) {
    const std::uint32_t payload = size >> kDroppedBits & 0x3ff;
    return static_cast<std::uint16_t>(sign | 0x7c00 | (payload == 0 ? 0x200 : payload));
  }
  if (size >= 0x477ff000) return sign | 0x7c00;  // 65520 and above: rounds to infinity
  if (size < 0x38800000) {                       // below the smallest normal number, 2^-14
    // In multiples of 2^-24, adding 2^23 rounds to nearest even and leaves the number in the low
    // bits.
    const float shifted = std::bit_cast<float>(size) * 0x1p24F + 0x1p23F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7fff));
  }
  const std::uint32_t rebased = size - (std::uint32_t{127 - 15} << 23);
  const std::uint32_t rounded = rebased + 0xfff + (rebased >> kDroppedBits & 1);
  return static_cast<std::uint16_t>(sign | rounded >> kDroppedBits);
}

template <float (*Convert)(std::uint16_t)>
void ReadHalves(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t half;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    out[i] = Convert(half);
  }
}

template <std::uint16_t (*Convert)(float)>
void WriteHalves(std::span<const float> values, std::span<std::byte> out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = Convert(values[i]);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
}

}  // namespace

std::string_view DtypeOf(FloatFormat format) { return kNames[static_cast<int>(format)].dtype; }

std::optional<FloatFormat> FloatFormatOfDtype(std::string_view dtype) {
  return Find(dtype, &DtypeOf);
}

std::string_view TorchDtypeOf(FloatFormat format) { return kNames[static_cast<int>(format)].torch; }

std::optional<FloatFormat> FloatFormatOfTorchDtype(std::string_view torch_dtype) {
  return Find(torch_dtype, &TorchDtypeOf);
}

std::size_t BytesOf(FloatFormat format) { return format == FloatFormat::kF32 ? 4 : 2; }

void ReadFloats(FloatFormat format, std::span<const std::byte> bytes, std::span<float> out) {
  TAKT_CHECK(bytes.size() == out.size() * BytesOf(format));
  if (out.empty()) return;
  switch (format) {
    case FloatFormat::kF32:
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case FloatFormat::kBf16:
      return ReadHalves<FromBf16>(bytes, out);
    case FloatFormat::kF16:
      return ReadHalves<FromF16>(bytes, out);
  }
}

void WriteFloats(FloatFormat format, std::span<const float> values, std::span<std::byte> out) {
  TAKT_CHECK(out.size() == values.size() * BytesOf(format));
  if (values.empty()) return;
  switch (format) {
    case FloatFormat::kF32:
      std::memcpy(out.data(), values.data(), out.size());
      return;
    case FloatFormat::kBf16:
      return WriteHalves<ToBf16>(values, out);
    case FloatFormat::kF16:
      return WriteHalves<ToF16>(values, out);
  }
}

}  // namespace takt::checkpoint
