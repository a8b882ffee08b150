// SPDX-License-Identifier: Apache-2.0
// Converts the floating formats of weights in files, F32, BF16 (the upper half of an f32) and F16
// (IEEE binary16), to and from f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace takt::checkpoint {

enum class FloatFormat : std::uint8_t { kF32 = 1, kBf16, kF16 };

inline constexpr FloatFormat kFloatFormats[] = {FloatFormat::kF32, FloatFormat::kBf16,
                                                FloatFormat::kF16};

// Returns safetensors' name: "F32", "BF16" or "F16".
std::string_view DtypeOf(FloatFormat format);
std::optional<FloatFormat> FloatFormatOfDtype(std::string_view dtype);

// Returns torch's name, as in a config.json: "float32", "bfloat16" or "float16".
std::string_view TorchDtypeOf(FloatFormat format);
std::optional<FloatFormat> FloatFormatOfTorchDtype(std::string_view torch_dtype);

std::size_t BytesOf(FloatFormat format);

// Converts to f32. The result is exact; NaNs keep their sign and payload.
// Precondition: bytes.size() == out.size() * BytesOf(format); alignment of bytes does not matter.
void ReadFloats(FloatFormat format, std::span<const std::byte> bytes, std::span<float> out);

// Converts from f32. It rounds to nearest, ties to even, and beyond the largest number to infinity.
// So it restores any bytes that ReadFloats took. The precondition is that of ReadFloats.
void WriteFloats(FloatFormat format, std::span<const float> values, std::span<std::byte> out);

}  // namespace takt::checkpoint
