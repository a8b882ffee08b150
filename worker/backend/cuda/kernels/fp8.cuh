// SPDX-License-Identifier: Apache-2.0
// The rules of FP8 (fp8.h) for kernels: scales, and values as codes of a format.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

inline constexpr int kFp8Threads = 256;

// The largest value of the block's kFp8Threads threads. Thread 0 gets it.
struct LargestShared {
  float of_warp[kFp8Threads / kWarpSize];
};
__device__ inline float LargestOfBlock(float largest) {
  auto& shared = Shared<LargestShared>();
  largest = WarpMax(largest);
  if (threadIdx.x % kWarpSize == 0) shared.of_warp[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
#pragma unroll
  for (const float other : shared.of_warp) largest = fmaxf(largest, other);
  return largest;
}

// Returns the magnitude of a finite number, and 0 for others.
__device__ inline float FiniteMagnitude(float x) {
  const std::uint32_t bits = BitsOf(x) & 0x7fffffff;
  return bits < 0x7f800000 ? FloatOf(bits) : 0;
}

// Returns 1 / scale for the largest finite magnitude. The largest value of either format is 1.75
// times a power of two.
__device__ inline float InverseScale(float largest, bool e5m2) {
  constexpr std::uint32_t kMantissaOfMost = 0x600000;  // of 1.75
  constexpr int kMostExponent = 100;                   // so that no result is a denormal
  const std::uint32_t bits = BitsOf(largest);
  const auto exponent = static_cast<int>(bits >> 23);
  if (exponent == 0) return 1;
  const int above = (bits & 0x7fffff) > kMantissaOfMost ? 1 : 0;
  const int of_scale = (e5m2 ? 15 : 8) - (exponent - 127) - above;
  const int least = of_scale < kMostExponent ? of_scale : kMostExponent;
  return FloatOf(static_cast<std::uint32_t>(127 - least) << 23);
}

// The two formats. Below the least normal number all values are equally far apart.
template <bool kE5m2>
struct Format {
  static constexpr int kMantissaBits = kE5m2 ? 2 : 3;
  static constexpr int kDroppedBits = 23 - kMantissaBits;
  static constexpr int kBias = kE5m2 ? 15 : 7;
  static constexpr float kLeastNormal = kE5m2 ? 0x1p-14F : 0x1p-6F;
  static constexpr float kLeastUnit = kE5m2 ? 0x1p7F : 0x1p14F;   // 2^23 times that distance
  static constexpr float kUnitsInOne = kE5m2 ? 0x1p16F : 0x1p9F;  // 1 over that distance
  static constexpr float kMost = kE5m2 ? 57344.0F : 448.0F;
};

// Returns x * scale in the format: rounded to nearest, ties to even, at most its largest value.
template <bool kE5m2>
__device__ inline std::uint8_t Encoded(float x, float scale) {
  using F = Format<kE5m2>;
  const std::uint32_t sign = BitsOf(x) >> 24 & 0x80;
  if (x != x) return static_cast<std::uint8_t>(sign | 0x7f);
  const std::uint32_t bits = BitsOf(x * scale) & 0x7fffffff;
  const float size = FloatOf(bits);
  if (size < F::kLeastNormal) {
    // The next larger number, the least normal one, has the code that follows.
    const float rounded = (size + F::kLeastUnit) - F::kLeastUnit;
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(rounded * F::kUnitsInOne));
  }
  constexpr std::uint32_t kBelowHalf = (1U << (F::kDroppedBits - 1)) - 1;
  const std::uint32_t odd = bits >> F::kDroppedBits & 1;
  const std::uint32_t rounded = bits + kBelowHalf + odd;
  const std::uint32_t kept = rounded >> F::kDroppedBits << F::kDroppedBits;
  const std::uint32_t finite = FloatOf(kept) > F::kMost ? BitsOf(F::kMost) : kept;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - F::kBias) << F::kMantissaBits;
  return static_cast<std::uint8_t>(sign | ((finite >> F::kDroppedBits) - kRebias));
}

// Counts values that the format cannot hold.
struct LostValues {
  unsigned overflows = 0, underflows = 0;

  __device__ void Count(float x, std::uint8_t code) {
    const std::uint32_t magnitude = BitsOf(x) & 0x7fffffff;
    overflows += magnitude == 0x7f800000 ? 1 : 0;
    underflows += (code & 0x7f) == 0 && magnitude != 0 ? 1 : 0;
  }
  // Adds the counts of a warp to `counts`, if there are any. All lanes call it together.
  __device__ void AddTo(std::uint64_t* counts) const {
    if (counts == nullptr) return;
    const unsigned over = WarpSum(overflows), under = WarpSum(underflows);
    if (threadIdx.x % kWarpSize != 0) return;
    using Sum = unsigned long long;  // as atomics have it
    static_assert(sizeof(Sum) == sizeof(std::uint64_t));
    auto* const sums = reinterpret_cast<Sum*>(counts);
    if (over > 0) atomicAdd(sums, Sum{over});
    if (under > 0) atomicAdd(sums + 1, Sum{under});
  }
};

// Returns the counts of an operand.
inline std::uint64_t* CountsOf(const QuantizeFp8& op, const LaunchContext& context) {
  if (context.fp8_counts == nullptr) return nullptr;
  return context.fp8_counts + 2 * static_cast<int>(op.operand);
}

// Returns four values in the format, in the order of memory.
template <bool kE5m2>
__device__ inline std::uint32_t EncodedFour(const Four& x, float scale, LostValues& lost) {
  std::uint32_t codes = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint8_t code = Encoded<kE5m2>(x.v[k], scale);
    lost.Count(x.v[k], code);
    codes |= static_cast<std::uint32_t>(code) << (8 * k);
  }
  return codes;
}

}  // namespace takt::backend::cuda
