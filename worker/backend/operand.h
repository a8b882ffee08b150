// SPDX-License-Identifier: Apache-2.0
// Has the tensors of ops that come in either of two types.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace takt::backend {

// A bfloat16 is an f32 without the lower half of its bits.
struct Bf16 {
  std::uint16_t bits;
};
inline float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// A tensor that an op reads, in f32 or in bf16. It converts from either pointer. Products in bf16
// round an operand that comes in f32 first, to nearest, ties to even.
struct Operand {
  Operand() = default;
  Operand(std::nullptr_t) {}                     // NOLINT(google-explicit-constructor)
  Operand(const float* tensor) : f32(tensor) {}  // NOLINT(google-explicit-constructor)
  Operand(const Bf16* tensor) : bf16(tensor) {}  // NOLINT(google-explicit-constructor)
  const float* f32 = nullptr;
  const Bf16* bf16 = nullptr;  // one of the two
};

// A tensor that an op writes: in f32, or rounded to bf16.
struct Output {
  Output() = default;
  Output(float* tensor) : f32(tensor) {}  // NOLINT(google-explicit-constructor)
  Output(Bf16* tensor) : bf16(tensor) {}  // NOLINT(google-explicit-constructor)
  operator Operand() const {              // NOLINT(google-explicit-constructor)
    return bf16 != nullptr ? Operand(bf16) : Operand(f32);
  }
  float* f32 = nullptr;
  Bf16* bf16 = nullptr;  // one of the two
};

}  // namespace takt::backend
