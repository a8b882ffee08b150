// SPDX-License-Identifier: Apache-2.0
// Rounds f32 and bf16 to the values of FP8 (fp8.h).
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

struct Format {
  int dropped_bits;    // of the mantissa of an f32
  float least_normal;  // below it all values are equally far apart
  float least_unit;    // 2^23 times that distance: adding it rounds to a multiple of the distance
  float most;
};
constexpr Format kE4m3 = {20, 0x1p-6F, 0x1p14F, 448.0F};
constexpr Format kE5m2 = {21, 0x1p-14F, 0x1p7F, 57344.0F};

// These read the first n elements, or all if there are fewer; the others are 0.
inline Vec Read(const float* p, std::int64_t n) { return LoadN(p, n); }
inline Vec Read(const Bf16* p, std::int64_t n) {
  ShortVec halves{};
  if (n >= kWidth) {
    __builtin_memcpy(&halves, p, sizeof halves);
  } else {
    __builtin_memcpy(&halves, p, static_cast<std::size_t>(n) * sizeof(Bf16));
  }
  return reinterpret_cast<Vec>(__builtin_convertvector(halves, UintVec) << 16);
}

inline UintVec LoadBits(const std::uint32_t* p) {
  UintVec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Magnitudes compare as their bits do.
inline UintVec Magnitude(Vec v) { return reinterpret_cast<UintVec>(v) & 0x7fffffffU; }
inline UintVec FiniteMagnitude(Vec v) {
  const UintVec bits = Magnitude(v);
  return bits < 0x7f800000U ? bits : UintVec{};
}

template <class T>
std::uint32_t LargestOf(const T* elements, std::int64_t count) {
  UintVec largest{};
  for (std::int64_t i = 0; i < count; i += kWidth) {
    const UintVec bits = FiniteMagnitude(Read(elements + i, count - i));
    largest = bits > largest ? bits : largest;
  }
  std::uint32_t result = 0;
  for (int i = 0; i < kWidth; ++i) result = largest[i] > result ? largest[i] : result;
  return result;
}

template <class T>
void RaiseByColumn(const T* row, std::int64_t count, std::uint32_t* largest) {
  for (std::int64_t i = 0; i < count; i += kWidth) {
    const UintVec bits = FiniteMagnitude(Read(row + i, count - i));
    const UintVec before = LoadBits(largest + i);
    const UintVec after = bits > before ? bits : before;
    __builtin_memcpy(largest + i, &after, sizeof after);
  }
}

template <class In, class Out>
Fp8Counts Round(const Fp8Run& run, const Format& format, const In* input, Out* output) {
  const std::uint32_t below_half = (1U << (format.dropped_bits - 1)) - 1;
  const std::uint32_t kept = ~((1U << format.dropped_bits) - 1);
  IntVec overflows{}, underflows{};
  for (std::int64_t i = 0; i < run.count; i += kWidth) {
    const std::int64_t n = run.count - i;
    const Vec x = Read(input + i, n);
    const UintVec bits = Magnitude(x * Load(run.scales + i));
    const UintVec odd = (bits >> format.dropped_bits) & 1;
    const Vec normal = reinterpret_cast<Vec>((bits + (below_half + odd)) & kept);
    const Vec size = reinterpret_cast<Vec>(bits);
    const Vec small = (size + format.least_unit) - format.least_unit;
    Vec rounded = size < format.least_normal ? small : normal;
    const IntVec is_over = rounded > format.most;
    rounded = is_over ? Splat(format.most) : rounded;
    const IntVec is_zero = rounded == Vec{}, was_zero = Magnitude(x) == UintVec{};
    const IntVec is_number = x == x;
    // A comparison that holds is -1.
    overflows -= is_over;
    underflows -= is_zero & ~was_zero & is_number;
    const UintVec sign = reinterpret_cast<UintVec>(x) & 0x80000000U;
    const UintVec result = reinterpret_cast<UintVec>(rounded * Load(run.inverses + i)) | sign;
    StoreN(output + i, is_number ? reinterpret_cast<Vec>(result) : x, n);
  }
  Fp8Counts counts;
  for (int i = 0; i < kWidth; ++i) {
    counts.overflows += overflows[i];
    counts.underflows += underflows[i];
  }
  return counts;
}

}  // namespace

std::uint32_t Fp8Largest(const Operand& elements, std::int64_t count) {
  return elements.bf16 != nullptr ? LargestOf(elements.bf16, count)
                                  : LargestOf(elements.f32, count);
}

void Fp8LargestByColumn(const Operand& row, std::int64_t count, std::uint32_t* largest) {
  row.bf16 != nullptr ? RaiseByColumn(row.bf16, count, largest)
                      : RaiseByColumn(row.f32, count, largest);
}

Fp8Counts RoundFp8(const Fp8Run& run) {
  const Format& format = run.is_e5m2 ? kE5m2 : kE4m3;
  const auto round_to = [&](auto* output) {
    return run.input.bf16 != nullptr ? Round(run, format, run.input.bf16, output)
                                     : Round(run, format, run.input.f32, output);
  };
  return run.output.bf16 != nullptr ? round_to(run.output.bf16) : round_to(run.output.f32);
}

}  // namespace takt::backend::TAKT_ISA
