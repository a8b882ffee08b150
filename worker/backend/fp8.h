// SPDX-License-Identifier: Apache-2.0
// Says how products round their operands to FP8, and counts what the formats could not hold.
//
// E4M3 has 3 bits of mantissa, E5M2 has 2 (Micikevicius et al. 2022, arXiv:2209.05433). E4M3
// reaches from 2^-9 to 448 and has no infinity, E5M2 from 2^-16 to 57344. An operand is multiplied
// by a scale, rounded to its format (to nearest, ties to even), and divided by the scale again:
// - The scale is the largest power of two with which the largest value stays within the format, and
//   at most 2^100. It is 1 if there is no value but zeros and denormals.
// - Values beyond the format, which only infinities are, become its largest ones. NaN stays NaN.
// - Every result is a bf16, because scales are powers of two. A product of two results is exact in
//   f32, so products in FP8 with f32 sums are those of MatmulBf16 with such operands.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace takt::backend {

// Says which values share a scale.
enum class Fp8Scaling : std::uint8_t {
  kNone,    // the operand is not rounded to FP8
  kTensor,  // all values of the operand
  kBlock    // 128 values that are summed one after the other; of weights, 128 x 128 values
};
inline constexpr std::int64_t kFp8BlockSize = 128;

enum class Fp8Operand : std::uint8_t { kActivation, kWeight, kGradient };
inline constexpr std::array kFp8Operands = {Fp8Operand::kActivation, Fp8Operand::kWeight,
                                            Fp8Operand::kGradient};

struct Fp8 {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  Fp8Operand operand = Fp8Operand::kActivation;

  bool rounds() const { return scaling != Fp8Scaling::kNone; }
  // Returns whether the format is E5M2 rather than E4M3.
  bool is_e5m2() const {
    return scaling == Fp8Scaling::kTensor && operand == Fp8Operand::kGradient;
  }
};

// Counts values that became the largest of the format, and values that became zero and were not.
struct Fp8Counts {
  std::int64_t overflows = 0, underflows = 0;
};

// Thread-safe.
class Fp8Counters {
 public:
  void Add(Fp8Operand operand, const Fp8Counts& counts) {
    Sums& sums = sums_[static_cast<std::size_t>(operand)];
    if (counts.overflows > 0) sums.overflows.fetch_add(counts.overflows, kRelaxed);
    if (counts.underflows > 0) sums.underflows.fetch_add(counts.underflows, kRelaxed);
  }
  // Returns what was added since the last call, or since the beginning.
  Fp8Counts Take(Fp8Operand operand) {
    Sums& sums = sums_[static_cast<std::size_t>(operand)];
    return {.overflows = sums.overflows.exchange(0, kRelaxed),
            .underflows = sums.underflows.exchange(0, kRelaxed)};
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  struct Sums {
    std::atomic<std::int64_t> overflows{0}, underflows{0};
  };
  std::array<Sums, kFp8Operands.size()> sums_;
};

}  // namespace takt::backend
