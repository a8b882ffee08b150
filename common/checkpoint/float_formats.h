// SPDX-License-Identifier: Apache-2.0
// The floating formats of weights in files: F32, BF16 (the upper half of an f32) and F16 (IEEE
// binary16), to and from f32.
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

// safetensors' name: "F32", "BF16", "F16".
std::string_view DtypeOf(FloatFormat format);
std::optional<FloatFormat> FloatFormatOfDtype(std::string_view dtype);

// torch's name, as in a config.json: "float32", "bfloat16", "float16".
std::string_view TorchDtypeOf(FloatFormat format);
std::optional<FloatFormat> FloatFormatOfTorchDtype(std::string_view torch_dtype);

std::size_t BytesOf(FloatFormat format);

// Every value of a file is one of f32: exact, NaNs keep their sign and payload.
// Precondition: bytes.size() == out.size() * BytesOf(format); alignment of bytes does not matter.
void ReadFloats(FloatFormat format, std::span<const std::byte> bytes, std::span<float> out);

// Rounds to nearest, ties to even, beyond the largest number to infinity; so it gives back the
// bytes that ReadFloats took, whatever they were.
// Precondition: as above.
void WriteFloats(FloatFormat format, std::span<const float> values, std::span<std::byte> out);

}  // namespace takt::checkpoint
