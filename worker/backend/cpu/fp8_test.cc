// SPDX-License-Identifier: Apache-2.0
// Tests products whose operands are rounded to FP8 on every instruction set, against the formats as
// they are defined: a list of the values of all codes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "gmock/gmock.h"
#include "worker/backend/cpu/op_testing.h"
#include "worker/backend/fp8.h"

namespace takt::backend::testing {
namespace {

// A format: bits of exponent and mantissa, and the largest finite value.
struct Format {
  int exponent_bits, mantissa_bits;
  double most;
};
constexpr Format kE4m3 = {4, 3, 448};
constexpr Format kE5m2 = {5, 2, 57344};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the value of a code as IEEE 754 would have it, without infinities and NaN.
double ValueOf(int code, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  const int exponent = (code & 0x7f) >> format.mantissa_bits;
  const int units = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  const double value = std::ldexp(units, std::max(exponent, 1) - bias - format.mantissa_bits);
  return code < 0x80 ? value : -value;
}

// Returns all finite magnitudes in ascending order. The position of one is its code.
Doubles Magnitudes(const Format& format) {
  Doubles values;
  for (int code = 0; code < 0x80 && ValueOf(code, format) <= format.most; ++code)
    values.push_back(ValueOf(code, format));
  return values;
}

// Returns the nearest value of the format; of equally near ones, that with an even code.
double Nearest(double x, const Format& format) {
  if (std::isnan(x)) return x;
  const Doubles values = Magnitudes(format);
  const double size = std::abs(x);
  std::size_t best = 0;
  for (std::size_t code = 1; code < values.size(); ++code) {
    const double here = std::abs(values[code] - size), before = std::abs(values[best] - size);
    if (here < before || (here == before && code % 2 == 0) || size == kInfinity) best = code;
  }
  return std::copysign(values[best], x);
}

// Returns the scale of values whose largest finite magnitude is this.
double ScaleOf(double largest, const Format& format) {
  if (largest < std::numeric_limits<float>::min()) return 1;
  double scale = std::ldexp(1.0, 100);
  while (largest * scale > format.most) scale /= 2;
  return scale;
}

double LargestOf(const Doubles& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

// Returns a [rows,columns] matrix of which each block of values was rounded with its scale.
Doubles Rounded(const Floats& x, std::int64_t columns, std::int64_t block_rows,
                std::int64_t block_columns, const Format& format) {
  const std::int64_t rows = std::ssize(x) / columns;
  Doubles result(x.begin(), x.end());
  for (std::int64_t row = 0; row < rows; row += block_rows) {
    for (std::int64_t column = 0; column < columns; column += block_columns) {
      std::vector<std::size_t> block;
      for (std::int64_t r = row; r < std::min(rows, row + block_rows); ++r) {
        for (std::int64_t c = column; c < std::min(columns, column + block_columns); ++c)
          block.push_back(static_cast<std::size_t>(r * columns + c));
      }
      Doubles values;
      for (const std::size_t i : block) values.push_back(x[i]);
      const double scale = ScaleOf(LargestOf(values), format);
      for (const std::size_t i : block) result[i] = Nearest(x[i] * scale, format) / scale;
    }
  }
  return result;
}

constexpr std::int64_t kAll = 1 << 20;

class Fp8Test : public OpTest {
 protected:
  Bf16s Pack(const Floats& b, bool transposed, std::int64_t k, std::int64_t n, Fp8Scaling fp8) {
    Bf16s packed(static_cast<std::size_t>(layout::PackedElements(k, n)), Bf16{0x7fc0});
    Run(PackBf16{.b = b.data(),
                 .transposed = transposed,
                 .fp8 = fp8,
                 .packed = packed.data(),
                 .k = k,
                 .n = n});
    return packed;
  }

  // Returns what `values`, a row, become as an operand whose values share one scale.
  Floats RoundedAs(const Floats& values, Fp8Operand operand) {
    const Floats one = {1};
    const Bf16s packed = Pack(one, false, 1, 1, Fp8Scaling::kNone);
    const std::int64_t count = std::ssize(values);
    Floats result = Unset(count);
    Run(MatmulBf16{.a = values.data(),
                   .a_fp8 = {Fp8Scaling::kTensor, operand},
                   .b = packed.data(),
                   .c = result.data(),
                   .m = count,
                   .n = 1,
                   .k = 1});
    return result;
  }
};

TEST(Fp8Formats, HaveTheValuesOfTheirDefinition) {
  const Doubles e4m3 = Magnitudes(kE4m3), e5m2 = Magnitudes(kE5m2);
  EXPECT_EQ(e4m3.size(), 127u);  // 128 codes, of which one is NaN
  EXPECT_EQ(e4m3[1], 0x1p-9);
  EXPECT_EQ(e4m3.back(), 448);
  EXPECT_EQ(e5m2.size(), 124u);  // and infinity and three NaN
  EXPECT_EQ(e5m2[1], 0x1p-16);
  EXPECT_EQ(e5m2.back(), 57344);
}

// The largest value is among each operand, so the scale is 1.
TEST_P(Fp8Test, EveryCodeStaysAndWhatIsBetweenGoesToTheNearestEven) {
  for (const Format& format : {kE4m3, kE5m2}) {
    const Doubles codes = Magnitudes(format);
    Floats values;
    Doubles expected;
    const auto add = [&](double x, double result) {
      values.push_back(static_cast<float>(x));
      expected.push_back(result);
      values.push_back(static_cast<float>(-x));
      expected.push_back(-result);
    };
    for (std::size_t code = 0; code < codes.size(); ++code) add(codes[code], codes[code]);
    for (std::size_t code = 0; code + 1 < codes.size(); ++code) {
      const double below = codes[code], above = codes[code + 1], middle = (below + above) / 2;
      add(middle, code % 2 == 0 ? below : above);
      add(std::nextafter(static_cast<float>(middle), 0.0F), below);
      add(std::nextafter(static_cast<float>(middle), 1e9F), above);
    }
    const Floats rounded = RoundedAs(
        values, format.mantissa_bits == 2 ? Fp8Operand::kGradient : Fp8Operand::kActivation);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(static_cast<double>(rounded[i]), expected[i]) << values[i];
  }
}

TEST_P(Fp8Test, InfinitiesSaturateAndNanStays) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [operand, most] :
       {std::pair(Fp8Operand::kActivation, 448.0F), std::pair(Fp8Operand::kGradient, 57344.0F)}) {
    const Floats rounded =
        RoundedAs({kInf, -kInf, kNan, most, std::bit_cast<float>(0xff800001U)}, operand);
    EXPECT_EQ(rounded[0], most);
    EXPECT_EQ(rounded[1], -most);
    EXPECT_TRUE(std::isnan(rounded[2]));
    EXPECT_EQ(rounded[3], most);
    EXPECT_TRUE(std::isnan(rounded[4]));
  }
  EXPECT_EQ(RoundedAs({kInf, 0}, Fp8Operand::kActivation)[0], 448);  // nothing is finite
}

// The products of small and of large values show the scale: they must be as precise as any.
TEST_P(Fp8Test, ScalesArePowersOfTwo) {
  for (const float size : {1e-30F, 3e-9F, 0.7F, 447.0F, 448.0F, 449.0F, 1e20F, 3e37F}) {
    Floats values;
    for (const float x : Random(97, 5)) values.push_back(x * size / 8);
    values.push_back(size);
    for (const auto& [operand, format] :
         {std::pair(Fp8Operand::kWeight, kE4m3), std::pair(Fp8Operand::kGradient, kE5m2)}) {
      const Doubles expected = Rounded(values, 1, kAll, kAll, format);
      const Floats rounded = RoundedAs(values, operand);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(static_cast<double>(rounded[i]), expected[i]) << values[i] << " of " << size;
    }
  }
  EXPECT_EQ(RoundedAs({0, -0.0F}, Fp8Operand::kWeight), (Floats{0, -0.0F}));
}

// An operand times a matrix with one 1 in each column shows how it is rounded.
TEST_P(Fp8Test, BlocksLieAlongTheSum) {
  const std::int64_t rows = 300, columns = 133;
  Floats x = Random(rows * columns, 7);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 500 % 40));
  Floats identity(static_cast<std::size_t>(columns * columns));
  for (std::int64_t i = 0; i < columns; ++i) identity[static_cast<std::size_t>(i * 134)] = 1;
  const Fp8 gradient = {Fp8Scaling::kBlock, Fp8Operand::kGradient};
  const Bf16s packed = Pack(identity, false, columns, columns, Fp8Scaling::kNone);
  Floats c = Unset(rows * columns);
  Run(MatmulBf16{.a = x.data(),
                 .a_fp8 = gradient,
                 .b = packed.data(),
                 .c = c.data(),
                 .m = rows,
                 .n = columns,
                 .k = columns});
  EXPECT_EQ(ToDoubles(c), Rounded(x, columns, 1, 128, kE4m3));

  Floats rows_identity(static_cast<std::size_t>(rows * rows));
  for (std::int64_t i = 0; i < rows; ++i) rows_identity[static_cast<std::size_t>(i * 301)] = 1;
  for (const bool is_a : {false, true}) {
    c = Unset(rows * columns);
    MatmulTransposedBf16 op{.a = rows_identity.data(),
                            .b = x.data(),
                            .b_fp8 = gradient,
                            .c = c.data(),
                            .m = rows,
                            .n = columns,
                            .k = rows};
    if (is_a) {
      std::swap(op.a, op.b);
      std::swap(op.a_fp8, op.b_fp8);
      std::swap(op.m, op.n);
    }
    Run(op);
    const Doubles expected = Rounded(x, columns, 128, 1, kE4m3);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        EXPECT_EQ(static_cast<double>(c[is_a ? j * rows + i : i * columns + j]),
                  expected[i * columns + j]);
      }
    }
  }

  for (const bool transposed : {false, true}) {
    const std::int64_t k = transposed ? columns : rows, n = transposed ? rows : columns;
    const Bf16s weights = Pack(x, transposed, k, n, Fp8Scaling::kBlock);
    const Floats& ones = transposed ? identity : rows_identity;
    c = Unset(k * n);
    Run(MatmulBf16{.a = ones.data(), .b = weights.data(), .c = c.data(), .m = k, .n = n, .k = k});
    const Doubles expected = Rounded(x, columns, 128, 128, kE4m3);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        EXPECT_EQ(static_cast<double>(c[transposed ? j * rows + i : i * columns + j]),
                  expected[i * columns + j]);
      }
    }
  }
}

TEST_P(Fp8Test, ProductIsThatOfRoundedOperandsSummedInF32) {
  const std::int64_t m = 70, n = 131, k = 300;
  const Floats a = Random(m * k, 1), b = Random(k * n, 2), bias = Random(n, 3);
  for (const Fp8Scaling scaling : {Fp8Scaling::kTensor, Fp8Scaling::kBlock}) {
    const bool whole = scaling == Fp8Scaling::kTensor;
    const Doubles a8 = Rounded(a, k, whole ? kAll : 1, whole ? kAll : 128, kE4m3);
    const Doubles b8 = Rounded(b, n, whole ? kAll : 128, whole ? kAll : 128, kE4m3);
    Doubles expected;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = bias[j];
        for (std::int64_t p = 0; p < k; ++p) sum += a8[i * k + p] * b8[p * n + j];
        expected.push_back(sum);
      }
    }
    const Bf16s packed = Pack(b, false, k, n, scaling);
    Floats c = Unset(m * n);
    Run(MatmulBf16{.a = a.data(),
                   .a_fp8 = {scaling, Fp8Operand::kActivation},
                   .b = packed.data(),
                   .c = c.data(),
                   .bias = bias.data(),
                   .m = m,
                   .n = n,
                   .k = k});
    ExpectNear(c, expected, SumTolerance(k, 2 * std::sqrt(static_cast<double>(k))), "a b + bias");
  }
}

// What a product leaves to a later one in bf16 is rounded to FP8 as f32 would be.
TEST_P(Fp8Test, OperandsInBf16AreRoundedAlike) {
  const std::int64_t m = 33, k = 260;
  const Bf16s x = NearestOf(Random(m * k, 4));
  const Floats wide = Widened(x);
  Floats identity(static_cast<std::size_t>(k * k));
  for (std::int64_t i = 0; i < k; ++i) identity[static_cast<std::size_t>(i * (k + 1))] = 1;
  const Bf16s packed = Pack(identity, false, k, k, Fp8Scaling::kNone);
  for (const Fp8Scaling scaling : {Fp8Scaling::kTensor, Fp8Scaling::kBlock}) {
    Floats of_bf16 = Unset(m * k), of_f32 = Unset(m * k);
    MatmulBf16 op{.a = x.data(),
                  .a_fp8 = {scaling, Fp8Operand::kActivation},
                  .b = packed.data(),
                  .c = of_bf16.data(),
                  .m = m,
                  .n = k,
                  .k = k};
    Run(op);
    op.a = wide.data();
    op.c = of_f32.data();
    Run(op);
    EXPECT_EQ(of_bf16, of_f32);
  }
}

// The gradient of a bias is that of values before they are rounded.
TEST_P(Fp8Test, SumsOfColumnsAreNotRounded) {
  const std::int64_t k = 40, n = 7;
  const Floats a = Random(k * n, 1), b = Random(k * n, 2);
  Floats c = Unset(n * n), plain = Unset(n), rounded = Unset(n);
  MatmulTransposedBf16 op{.a = a.data(),
                          .b = b.data(),
                          .c = c.data(),
                          .column_sums = plain.data(),
                          .m = n,
                          .n = n,
                          .k = k};
  Run(op);
  op.b_fp8 = {Fp8Scaling::kTensor, Fp8Operand::kGradient};
  op.column_sums = rounded.data();
  Run(op);
  EXPECT_EQ(rounded, plain);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Fp8Test, ::testing::ValuesIn(TestedBackends()));

TEST(Fp8Counters, CountWhatTheFormatCannotHold) {
  Fp8Counters counters;
  const std::unique_ptr<Backend> backend = CreateOrDie({.threads = 2, .fp8_counters = &counters});
  Floats values(600, 448);
  values[3] = 0x1p-12F;  // an eighth of the least value
  values[4] = -0x1p-30F;
  values[5] = 0;
  values[6] = std::numeric_limits<float>::infinity();
  values[7] = std::bit_cast<float>(0x7fffffffU);
  const Floats one = {1};
  Bf16s packed(static_cast<std::size_t>(layout::PackedElements(1, 1)));
  ASSERT_TRUE(
      backend->Run(PackBf16{.b = one.data(), .packed = packed.data(), .k = 1, .n = 1}).ok());
  Floats result = Unset(600);
  const MatmulBf16 op{.a = values.data(),
                      .a_fp8 = {Fp8Scaling::kTensor, Fp8Operand::kActivation},
                      .b = packed.data(),
                      .c = result.data(),
                      .m = 600,
                      .n = 1,
                      .k = 1};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(backend->Run(op).ok());
  Fp8Counts counts = counters.Take(Fp8Operand::kActivation);
  EXPECT_EQ(counts.overflows, 2);
  EXPECT_EQ(counts.underflows, 4);
  counts = counters.Take(Fp8Operand::kActivation);
  EXPECT_EQ(counts.overflows, 0);
  EXPECT_EQ(counts.underflows, 0);
  EXPECT_EQ(counters.Take(Fp8Operand::kGradient).overflows, 0);
}

}  // namespace
}  // namespace takt::backend::testing
