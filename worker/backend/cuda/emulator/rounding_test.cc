// SPDX-License-Identifier: Apache-2.0
// Tests the emulated kernels that round to bf16, and what they leave between rows.
#include <tuple>

#include "common/layout/packed_matrix.h"
#include "worker/backend/cuda/emulator/kernel_testing.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

std::vector<Bf16> RoundedAll(std::span<const float> values) {
  std::vector<Bf16> rounded(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  Launch(RoundBf16{.input = values.data(), .rounded = rounded.data(), .rows = 1, .columns = count},
         {});
  return rounded;
}

TEST(CudaKernels, PackBf16IsRowMajorInWholeEights) {
  for (const auto& [k, n] : {std::pair{1, 1}, std::pair{3, 131}, std::pair{70, 36}}) {
    for (const bool transposed : {false, true}) {
      Tensors t(0);
      const float* b = t.Random(k * n);
      const std::int64_t stride = PackedBf16Stride(n), rows = PackedBf16Stride(k);
      ASSERT_LE(rows * stride, layout::PackedElements(k, n));
      Bf16* packed = t.UnsetBf16(rows * stride);
      RunOp(*CreateEmulatedBackend(ThreadOrder::kShuffled),
            PackBf16{.b = b, .transposed = transposed, .packed = packed, .k = k, .n = n});
      EXPECT_TRUE(t.BoundsHeld());
      const std::vector<Bf16> rounded = RoundedAll({b, static_cast<std::size_t>(k * n)});
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < stride; ++j) {
          const bool inside = i < k && j < n;
          const Bf16 expected = inside ? rounded[transposed ? j * k + i : i * n + j] : Bf16{};
          ASSERT_EQ(packed[i * stride + j].bits, expected.bits) << i << " " << j;
        }
      }
    }
  }
}

TEST(CudaKernels, RoundsToNearestEven) {
  const std::uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0xbf818000,
                                0x7f7fffff, 0x7f800000, 0x00000001, 0x7f800001};
  const std::uint16_t expected[] = {0x3f80, 0x3f82, 0x3f81, 0x3f80, 0xbf82,
                                    0x7f80, 0x7f80, 0x0000, 0x7fc0};
  Floats values;
  for (const std::uint32_t b : bits) values.push_back(std::bit_cast<float>(b));
  const std::vector<Bf16> rounded = RoundedAll(values);
  for (std::size_t i = 0; i < std::size(bits); ++i) EXPECT_EQ(rounded[i].bits, expected[i]) << i;
}

TEST(CudaKernels, RoundedRowsHaveZerosBetween) {
  constexpr std::int64_t kRows = 3;
  for (const auto& [columns, input_stride, rounded_stride] :
       {std::tuple{131, 131, 136}, std::tuple{36, 44, 40}, std::tuple{16, 20, 16}}) {
    Tensors t(0);
    const float* input = t.Random(kRows * input_stride);
    const std::vector<Bf16> halves =
        RoundedAll({input, static_cast<std::size_t>(kRows * input_stride)});
    for (const Operand& operand : {Operand(input), Operand(halves.data())}) {
      Bf16* rounded = t.UnsetBf16(kRows * rounded_stride);
      Launch(RoundBf16{.input = operand,
                       .rounded = rounded,
                       .rows = kRows,
                       .columns = columns,
                       .input_stride = input_stride,
                       .rounded_stride = rounded_stride},
             {});
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t i = 0; i < rounded_stride; ++i) {
          const Bf16 expected =
              i < columns ? halves[static_cast<std::size_t>(row * input_stride + i)] : Bf16{};
          ASSERT_EQ(rounded[row * rounded_stride + i].bits, expected.bits) << row << " " << i;
        }
      }
    }
    EXPECT_TRUE(t.BoundsHeld());
  }
}

TEST(CudaKernels, AddsABiasToEveryRow) {
  for (const Sizes s : kSizes) {
    Check(Name("rows", s), -1, [&](Backend&, Tensors& t) {
      const std::int64_t stride = s.columns + 4;
      float* x = t.Random(s.rows * stride);
      const float* bias = t.Random(s.columns);
      const Floats before(x, x + s.rows * stride);
      const std::vector<Bf16> halves_before = RoundedAll(before);
      std::vector<Bf16> halves = halves_before;
      Launch(AddBias{x, bias, s.rows, s.columns, stride}, {});
      Launch(AddBias{halves.data(), bias, s.rows, s.columns, stride}, {});
      Floats sums;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::int64_t column = static_cast<std::int64_t>(i) % stride;
        const float added = column < s.columns ? bias[column] : 0;
        EXPECT_EQ(x[i], before[i] + added);
        sums.push_back(std::bit_cast<float>(std::uint32_t{halves_before[i].bits} << 16) + added);
      }
      const std::vector<Bf16> expected = RoundedAll(sums);
      for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(halves[i].bits, expected[i].bits);
      Result result;
      result.Add(x, s.rows * stride);
      return result;
    });
  }
}

}  // namespace
}  // namespace takt::backend::cuda
