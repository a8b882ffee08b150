// SPDX-License-Identifier: Apache-2.0
// Tests the conversion to FP8 in the emulator, against the nearest of all numbers of a format.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

// The magnitudes of a format by code, without those that are no numbers.
std::vector<double> Magnitudes(bool e5m2) {
  const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, last = e5m2 ? 0x7b : 0x7e;
  std::vector<double> magnitudes;
  for (int code = 0; code <= last; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
    const int one = exponent > 0 ? 1 << mantissa_bits : 0;
    magnitudes.push_back(std::ldexp(one + mantissa, std::max(exponent, 1) - bias - mantissa_bits));
  }
  return magnitudes;
}

// Returns the code of the nearest number; of two, that of the even one.
int Nearest(double x, bool e5m2) {
  const std::vector<double> magnitudes = Magnitudes(e5m2);
  int best = 0;
  for (int code = 1; code < static_cast<int>(magnitudes.size()); ++code) {
    const double distance = std::abs(std::abs(x) - magnitudes[code]);
    const double least = std::abs(std::abs(x) - magnitudes[best]);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return std::signbit(x) ? best | 0x80 : best;
}

// Returns the largest power of two with which the largest finite value stays in the format.
double ScaleOf(std::span<const float> values, bool e5m2) {
  double largest = 0;
  for (const float x : values) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  if (largest < std::numeric_limits<float>::min()) return 1;
  double scale = 0x1p100;
  while (largest * scale > Magnitudes(e5m2).back()) scale /= 2;
  return scale;
}

struct Case8 {
  std::int64_t rows, columns, stride = 0;
};
constexpr Case8 kCases[] = {{1, 1}, {3, 12, 20}, {70, 37}, {33, 64}, {2, 1028}};

// Values of many sizes: some become the numbers between zero and the least normal one, some zero.
Floats Values(std::int64_t count) {
  Floats values = testing::Random(count, 7);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(values[i], -static_cast<int>(i % 23));
  return values;
}

// Expects codes of `values` [rows,columns] as QuantizeFp8 leaves them.
void ExpectCodes(const QuantizeFp8& op, const Floats& values, std::int64_t stride) {
  Floats used;
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const auto first = values.begin() + row * stride;
    used.insert(used.end(), first, first + op.columns);
  }
  const double scale = ScaleOf(used, op.e5m2);
  EXPECT_EQ(*op.inverse_scales, 1 / scale);
  const std::int64_t outer = op.sums_rows ? op.columns : op.rows;
  const std::int64_t inner = op.sums_rows ? op.rows : op.columns;
  for (std::int64_t i = 0; i < outer; ++i) {
    for (std::int64_t k = 0; k < Fp8Stride(inner, op.scales); ++k) {
      int expected = 0;
      if (k < inner) {
        const float x = op.sums_rows ? used[k * op.columns + i] : used[i * op.columns + k];
        expected = Nearest(x * scale, op.e5m2);
      }
      ASSERT_EQ(op.output[i * Fp8Stride(inner, op.scales) + k], expected) << i << ", " << k;
    }
  }
}

// Returns what an op writes, for comparison of orders.
std::vector<std::uint8_t> Converted(QuantizeFp8 op, ThreadOrder order,
                                    std::uint64_t* counts = nullptr) {
  const std::int64_t outer = op.sums_rows ? op.columns : op.rows;
  const std::int64_t inner = op.sums_rows ? op.rows : op.columns;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(outer * Fp8Stride(inner, op.scales)),
                                  0xee);
  std::vector<float> scratch(kFp8ScratchBytes / sizeof(float), testing::kNan);
  op.output = codes.data();
  emulator::SetThreadOrder(order);
  Launch(op, {.scratch = scratch.data(), .fp8_counts = counts});
  return codes;
}

TEST(CudaFp8, RoundsToTheNearestNumberOfTheFormat) {
  for (const Case8& c : kCases) {
    const std::int64_t stride = c.stride != 0 ? c.stride : c.columns;
    const Floats values = Values(c.rows * stride);
    for (int way = 0; way < 8; ++way) {
      const bool sums_rows = way % 2 == 1, e5m2 = way / 2 % 2 == 1, bf16 = way >= 4;
      const testing::Bf16s halves = testing::NearestOf(values);
      float inverse = 0;
      QuantizeFp8 op{.sums_rows = sums_rows,
                     .e5m2 = e5m2,
                     .rows = c.rows,
                     .columns = c.columns,
                     .input_stride = c.stride,
                     .inverse_scales = &inverse};
      op.input = bf16 ? Operand(halves.data()) : Operand(values.data());
      std::vector<std::uint8_t> codes = Converted(op, ThreadOrder::kForward);
      op.output = codes.data();
      ExpectCodes(op, bf16 ? testing::Widened(halves) : values, stride);
      for (const ThreadOrder order : {ThreadOrder::kBackward, ThreadOrder::kShuffled})
        EXPECT_EQ(Converted(op, order), codes);
    }
  }
}

TEST(CudaFp8, KeepsWhatIsNoFiniteNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats values = {infinity, -infinity, testing::kNan, -0.0F, 1.5F, 1e-30F, -448, 448};
  for (const bool e5m2 : {false, true}) {
    float inverse = 0;
    const std::vector<std::uint8_t> codes = Converted(
        {.input = values.data(), .e5m2 = e5m2, .rows = 1, .columns = 8, .inverse_scales = &inverse},
        ThreadOrder::kForward);
    EXPECT_EQ(inverse, e5m2 ? 0x1p-7F : 1.0F);  // 448 is 1.75 * 2^8, and 57344 is 1.75 * 2^15
    const std::uint8_t most = e5m2 ? 0x7b : 0x7e;
    EXPECT_EQ(codes[0], most);
    EXPECT_EQ(codes[1], most | 0x80);
    EXPECT_EQ(codes[2] & 0x7f, 0x7f);
    EXPECT_EQ(codes[3], 0x80);
    EXPECT_EQ(codes[5], 0);
    EXPECT_EQ(codes[6], most | 0x80);
    EXPECT_EQ(codes[7], most);
  }
}

// Infinities overflow, and what becomes zero without being it underflows.
TEST(CudaFp8, CountsWhatTheFormatCannotHold) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats values = {infinity, 1e-30F,        1,       -0.0F, -infinity,
                         448,      testing::kNan, -1e-30F, 1e-30F};
  for (const Fp8Scales scales : {Fp8Scales::kOne, Fp8Scales::kVectors, Fp8Scales::kSquares}) {
    for (const bool sums_rows : {false, true}) {
      std::uint64_t counts[2 * kFp8Operands.size()] = {};
      Floats inverse(8);
      const QuantizeFp8 op{.input = values.data(),
                           .operand = Fp8Operand::kGradient,
                           .sums_rows = sums_rows,
                           .scales = scales,
                           .rows = sums_rows ? 9 : 1,
                           .columns = sums_rows ? 1 : 9,
                           .inverse_scales = inverse.data()};
      for (int i = 0; i < 2; ++i) Converted(op, ThreadOrder::kShuffled, counts);
      constexpr auto kGradients = 2 * static_cast<std::size_t>(Fp8Operand::kGradient);
      EXPECT_EQ(counts[kGradients], 4U);
      EXPECT_EQ(counts[kGradients + 1], 6U);
      EXPECT_EQ(std::accumulate(std::begin(counts), std::end(counts), std::uint64_t{0}), 10U);
    }
  }
}

// Zeros and denormals have the scale 1, and tiny numbers have the largest scale.
TEST(CudaFp8, ScalesAreBounded) {
  const auto inverse_of = [](float largest) {
    float inverse = 0;
    Converted({.input = &largest, .rows = 1, .columns = 1, .inverse_scales = &inverse},
              ThreadOrder::kForward);
    return inverse;
  };
  EXPECT_EQ(inverse_of(0), 1);
  EXPECT_EQ(inverse_of(0x1p-130F), 1);
  EXPECT_EQ(inverse_of(0x1p-120F), 0x1p-100F);
  EXPECT_EQ(inverse_of(449), 2);
  EXPECT_EQ(inverse_of(std::numeric_limits<float>::max()), 0x1p120F);
}

// Returns the scale of a value by the values that share it.
double ScaleOfBlock(const QuantizeFp8& op, const Floats& values, std::int64_t outer,
                    std::int64_t block) {
  const std::int64_t num_outer = op.sums_rows ? op.columns : op.rows;
  const std::int64_t num_inner = op.sums_rows ? op.rows : op.columns;
  const bool squares = op.scales == Fp8Scales::kSquares;
  const std::int64_t first = squares ? outer / kFp8BlockSize * kFp8BlockSize : outer;
  const std::int64_t last = squares ? std::min(num_outer, first + kFp8BlockSize) : outer + 1;
  Floats shared;
  for (std::int64_t o = first; o < last; ++o) {
    const std::int64_t end = std::min(num_inner, (block + 1) * kFp8BlockSize);
    for (std::int64_t i = block * kFp8BlockSize; i < end; ++i)
      shared.push_back(op.sums_rows ? values[i * op.columns + o] : values[o * op.columns + i]);
  }
  return ScaleOf(shared, /*e5m2=*/false);
}

TEST(CudaFp8, BlocksHaveScalesOfTheirOwn) {
  constexpr std::int64_t kRows = 150, kColumns = 140;
  const Floats values = Values(kRows * kColumns);
  for (const Fp8Scales scales : {Fp8Scales::kVectors, Fp8Scales::kSquares}) {
    for (const bool sums_rows : {false, true}) {
      QuantizeFp8 op{.input = values.data(),
                     .sums_rows = sums_rows,
                     .scales = scales,
                     .rows = kRows,
                     .columns = kColumns};
      const std::int64_t outer = sums_rows ? kColumns : kRows;
      const std::int64_t inner = sums_rows ? kRows : kColumns;
      const std::int64_t stride = Fp8Stride(inner, scales);
      Floats inverse(static_cast<std::size_t>(NumFp8Scales(outer, stride, scales)), 0.0F);
      op.inverse_scales = inverse.data();
      const std::vector<std::uint8_t> codes = Converted(op, ThreadOrder::kForward);
      for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t block = 0; block < stride / kFp8BlockSize; ++block) {
          const double scale = ScaleOfBlock(op, values, o, block);
          const std::int64_t place = scales == Fp8Scales::kVectors
                                         ? block * outer + o
                                         : o / kFp8BlockSize * Fp8SquareStride(stride) + block;
          ASSERT_EQ(inverse[place], 1 / scale) << o << ", " << block;
          for (std::int64_t i = block * kFp8BlockSize; i < (block + 1) * kFp8BlockSize; ++i) {
            float x = 0;
            if (i < inner) x = sums_rows ? values[i * kColumns + o] : values[o * kColumns + i];
            ASSERT_EQ(codes[o * stride + i], Nearest(x * scale, false)) << o << ", " << i;
          }
        }
      }
      const Floats before = inverse;
      for (const ThreadOrder order : {ThreadOrder::kBackward, ThreadOrder::kShuffled}) {
        EXPECT_EQ(Converted(op, order), codes);
        EXPECT_EQ(inverse, before);
      }
    }
  }
}

TEST(CudaFp8, WeightsArePackedAlongTheirSum) {
  constexpr std::int64_t kK = 37, kN = 20;
  const Floats values = Values(kK * kN);
  const auto backend = CreateEmulatedBackend(ThreadOrder::kShuffled);
  for (const bool transposed : {false, true}) {
    testing::Bf16s packed(static_cast<std::size_t>(layout::PackedElements(kK, kN)));
    RunOp(*backend, PackBf16{.b = values.data(),
                             .transposed = transposed,
                             .fp8 = Fp8Scaling::kTensor,
                             .packed = packed.data(),
                             .k = kK,
                             .n = kN});
    const PackedFp8 result = PackedFp8Of(packed.data(), kK, kN, Fp8Scales::kOne);
    std::vector<std::uint8_t> codes(result.codes,
                                    result.codes + kN * Fp8Stride(kK, Fp8Scales::kOne));
    float inverse = *result.inverse_scales;
    const QuantizeFp8 op{.sums_rows = !transposed,
                         .rows = transposed ? kN : kK,
                         .columns = transposed ? kK : kN,
                         .output = codes.data(),
                         .inverse_scales = &inverse};
    ExpectCodes(op, values, op.columns);
    const auto* const end = reinterpret_cast<const std::uint8_t*>(packed.data() + packed.size());
    EXPECT_LE(reinterpret_cast<const std::uint8_t*>(result.inverse_scales + 1), end);
  }
}

TEST(CudaFp8, SquaresOfAWeightFitItsMemory) {
  constexpr std::int64_t kK = 128, kN = 20;
  const Floats values = Values(kK * kN);
  const auto backend = CreateEmulatedBackend(ThreadOrder::kBackward);
  testing::Bf16s packed(static_cast<std::size_t>(layout::PackedElements(kK, kN)));
  RunOp(*backend, PackBf16{.b = values.data(),
                           .transposed = true,
                           .fp8 = Fp8Scaling::kBlock,
                           .packed = packed.data(),
                           .k = kK,
                           .n = kN});
  const PackedFp8 result = PackedFp8Of(packed.data(), kK, kN, Fp8Scales::kSquares);
  EXPECT_EQ(*result.inverse_scales, 1 / ScaleOf(values, /*e5m2=*/false));
  EXPECT_EQ(result.codes[5], Nearest(values[5] / *result.inverse_scales, false));
  const auto* const end = reinterpret_cast<const std::uint8_t*>(packed.data() + packed.size());
  const std::int64_t count = NumFp8Scales(kN, kK, Fp8Scales::kSquares);
  EXPECT_LE(reinterpret_cast<const std::uint8_t*>(result.inverse_scales + count), end);
}

}  // namespace
}  // namespace takt::backend::cuda
