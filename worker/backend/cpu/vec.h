// SPDX-License-Identifier: Apache-2.0
// A vector of floats as wide as the instruction set that this file is compiled for, and the
// functions that kernels need.
//
// The *_kernels.cc files are compiled once per instruction set (CMakeLists.txt), each time into
// another namespace. They and what they include must not use inline functions or templates of other
// headers: the linker keeps one copy of those, and it might be the one with AVX-512 in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/backend/ops.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef TAKT_ISA
#error "compile with -DTAKT_ISA=<namespace>, as worker/backend/CMakeLists.txt does"
#endif

namespace takt::backend::TAKT_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t IntVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint32_t UintVec __attribute__((vector_size(4 * kWidth)));

inline std::int64_t Min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t Max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t RoundUp(std::int64_t a, std::int64_t unit) {
  return (a + unit - 1) / unit * unit;
}

// x - 0 is x also for -0, and the compiler drops the subtraction.
inline Vec Splat(float x) { return x - Vec{}; }

inline Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// These access the first n < kWidth elements. Loading sets the others to `fill`; storing leaves
// them alone.
inline Vec LoadPart(const float* p, std::int64_t n, float fill = 0) {
  Vec v = Splat(fill);
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}

inline void StorePart(float* p, Vec v, std::int64_t n) {
  __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

// These access the first n elements, or all if there are fewer. They are static because GCC then
// inlines the loops of all kernels.
static inline Vec LoadN(const float* p, std::int64_t n) {
  return n >= kWidth ? Load(p) : LoadPart(p, n);
}
static inline void StoreN(float* p, Vec v, std::int64_t n) {
  n >= kWidth ? Store(p, v) : StorePart(p, v, n);
}

// Returns v with zeros in the lanes from n on.
inline Vec KeepFirst(Vec v, std::int64_t n) {
  IntVec lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(Min(n, kWidth)) ? v : Vec{};
}

// Returns v with zeros in the lanes before n.
inline Vec DropFirst(Vec v, std::int64_t n) {
  IntVec lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(Min(n, kWidth)) ? Vec{} : v;
}

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec Clamp(Vec x, float low, float high) {
  x = x < low ? Splat(low) : x;
  return x > high ? Splat(high) : x;
}

inline float Sum(Vec v) {
  for (int width = kWidth / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

inline float MaxElement(Vec v) {
  float max = v[0];
  for (int i = 1; i < kWidth; ++i) max = v[i] > max ? v[i] : max;
  return max;
}

// Returns e^x within 2 ulp for x in [-87, 88], and clamps x outside of it. It uses the Cody-Waite
// reduction and the polynomial of Cephes' expf.
inline Vec Exp(Vec x) {
  x = Clamp(x, -87.0F, 88.0F);
  const float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x * 1.44269504088896341F + kRound;
  const Vec n = shifted - kRound;
  const Vec r = x - n * 0.693359375F + n * 2.12194440e-4F;
  Vec p = Splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return p * reinterpret_cast<Vec>(power);
}

typedef std::uint16_t ShortVec __attribute__((vector_size(2 * kWidth)));

// Returns bf16 in the upper half of each element. Adding just under half a unit of bf16, and one
// more if the part that stays is odd, carries where rounding to nearest even goes up. A NaN stays a
// NaN.
inline IntVec Rounded(Vec v) {
  const UintVec bits = reinterpret_cast<UintVec>(v);
  const UintVec odd = (bits >> 16) & 1;
  const UintVec rounded = bits + (0x7fff + odd);
  return reinterpret_cast<IntVec>(v == v ? rounded : (bits | 0x400000));
}

inline IntVec LowerHalf(IntVec v) { return (v >> 16) & 0xffff; }
inline IntVec UpperHalf(IntVec v) { return v & ~0xffff; }

// Stores the first n elements, or all if there are fewer, rounded to bf16.
static inline void StoreN(Bf16* p, Vec v, std::int64_t n) {
  const ShortVec halves = __builtin_convertvector(LowerHalf(Rounded(v)), ShortVec);
  if (n >= kWidth) {
    __builtin_memcpy(p, &halves, sizeof halves);
  } else {
    __builtin_memcpy(p, &halves, static_cast<std::size_t>(n) * sizeof(Bf16));
  }
}

// Calls f(output) with the pointer that is set.
template <class F>
inline void To(const Output& output, const F& f) {
  output.bf16 != nullptr ? f(output.bf16) : f(output.f32);
}

inline Vec Sqrt(Vec v) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, v);  // the unmasked one makes GCC 12 warn
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(v);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(v);
#else
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

}  // namespace takt::backend::TAKT_ISA
