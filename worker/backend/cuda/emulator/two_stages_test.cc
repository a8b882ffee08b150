// SPDX-License-Identifier: Apache-2.0
// Tests sums whose two stages are one launch: in every order of blocks they have the bits of the
// order that docs/numerics.md states, and they leave the counts of blocks as they were.
#include "worker/backend/cuda/kernels/two_stages.cuh"

#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

constexpr ThreadOrder kOrders[] = {ThreadOrder::kForward, ThreadOrder::kBackward,
                                   ThreadOrder::kShuffled};

// Blocks wait only where others run at the same time.
class TwoStagesTest : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { emulator::SetBlocksAtOnce(GetParam()); }
  void TearDown() override { emulator::SetBlocksAtOnce(1); }
};
INSTANTIATE_TEST_SUITE_P(BlocksAtOnce, TwoStagesTest, ::testing::Values(1, 5, 24));

// Block b of the first stage writes b + 1, in its second warp, which comes later than the first.
// Each block of the second stage adds up all of these.
void AddNumbers(double* numbers, double* sums, TwoStages stages) {
  const unsigned block = StartBlock(stages, &Shared<unsigned>());
  if (block < stages.first) {
    if (threadIdx.x >= kWarpSize) __syncwarp();
    if (threadIdx.x == kWarpSize) numbers[block] = block + 1;
    EndFirstStage(stages);
    return;
  }
  WaitForFirstStage(stages);
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (unsigned b = 0; b < stages.first; ++b) sum += LoadPastL1(numbers + b);
  sums[block - stages.first] = sum;
}

TEST_P(TwoStagesTest, TheSecondSeesAllOfTheFirstAndTheCountsAreZeroAgain) {
  std::uint32_t counts[kBlockCounts] = {};
  for (const ThreadOrder order : kOrders) {
    for (const unsigned first : {0U, 1U, 5U, 40U}) {
      std::vector<double> numbers(first), sums(3);
      emulator::SetThreadOrder(order);
      const TwoStages stages = {.counts = counts, .first = first, .second = 3};
      LaunchKernel(AddNumbers, stages.Launched(2 * kWarpSize, sizeof(unsigned)), nullptr,
                   numbers.data(), sums.data(), stages);
      EXPECT_EQ(sums, std::vector<double>(3, first * (first + 1) / 2.0));
      for (const std::uint32_t count : counts) EXPECT_EQ(count, 0U);
    }
  }
}

// Sums of the columns of values[rows,columns], added to `before` unless it is empty: runs of rows,
// then every 8th run, then these eight.
Floats InStatedOrder(const Floats& values, Sizes s, const Floats& before) {
  const std::int64_t per_run = std::max<std::int64_t>(16, (s.rows + 511) / 512);
  Floats sums;
  for (std::int64_t column = 0; column < s.columns; ++column) {
    float of_warps[8] = {};
    for (std::int64_t run = 0; run * per_run < s.rows; ++run) {
      float of_run = 0;
      for (std::int64_t r = run * per_run; r < std::min((run + 1) * per_run, s.rows); ++r)
        of_run += values[static_cast<std::size_t>(r * s.columns + column)];
      of_warps[run % 8] += of_run;
    }
    float sum = 0;
    for (const float of_warp : of_warps) sum += of_warp;
    sums.push_back(before.empty() ? sum : before[static_cast<std::size_t>(column)] + sum);
  }
  return sums;
}

void ExpectBits(const float* sums, const Floats& expected, const std::string& what) {
  EXPECT_TRUE(SameBits({sums, sums + expected.size()}, expected)) << what;
}

void ExpectColumnsInStatedOrder(Backend& backend, Sizes s, std::size_t offset, bool accumulate) {
  Tensors tensors(offset);
  const Floats values = testing::Random(s.rows * s.columns, 1);
  const Floats before = accumulate ? testing::Random(s.columns, 2) : Floats();
  const Floats expected = InStatedOrder(values, s, before);
  float* const d_bias = accumulate ? tensors.Put(before) : tensors.Unset(s.columns);
  RunOp(backend, BiasGrad{.d_output = tensors.Put(values),
                          .d_bias = d_bias,
                          .rows = s.rows,
                          .columns = s.columns,
                          .accumulate = accumulate});
  ExpectBits(d_bias, expected, Name("bias", s));
  EXPECT_TRUE(tensors.BoundsHeld());
}

void ExpectNormsInStatedOrder(Backend& backend, Sizes s, std::size_t offset, bool accumulate) {
  Tensors tensors(offset);
  const Floats values = testing::Random(s.rows * s.columns, 1);
  const Floats before = accumulate ? testing::Random(s.columns, 2) : Floats();
  const auto output = [&] { return accumulate ? tensors.Put(before) : tensors.Unset(s.columns); };
  const Floats expected = InStatedOrder(values, s, before);
  LayerNormBackwardInput op = {.d_output = tensors.Put(values),
                               .x = tensors.Random(s.rows * s.columns),
                               .weight = tensors.Random(s.columns),
                               .mean = tensors.Random(s.rows),
                               .rstd = tensors.Random(s.rows),
                               .residual_gradient = tensors.Put(values),
                               .d_input = tensors.Unset(s.rows * s.columns)};
  op.sums = {.d_weight = output(), .d_bias = output()};
  op.sums.of_residual_gradient = output(), op.sums.of_d_input = output();
  op.sums.accumulate = accumulate;
  op.rows = s.rows, op.columns = s.columns;
  RunOp(backend, op);
  ExpectBits(op.sums.d_bias, expected, Name("norm's bias", s));
  ExpectBits(op.sums.of_residual_gradient, expected, Name("residual", s));
  const float* const d_input = op.d_input.f32;
  ExpectBits(op.sums.of_d_input, InStatedOrder({d_input, d_input + values.size()}, s, before),
             Name("d_input", s));
  EXPECT_TRUE(tensors.BoundsHeld());
}

// The sizes have one run, more runs than warps, several groups of columns, and runs of 17 rows.
TEST_P(TwoStagesTest, ColumnsAreSummedInTheStatedOrder) {
  for (const ThreadOrder order : kOrders) {
    const auto backend = CreateEmulatedBackend(order);
    for (const Sizes s : {Sizes{9, 4}, Sizes{300, 261}, Sizes{8200, 3}}) {
      ExpectColumnsInStatedOrder(*backend, s, /*offset=*/0, /*accumulate=*/false);
      ExpectColumnsInStatedOrder(*backend, s, /*offset=*/1, /*accumulate=*/true);
    }
  }
}

TEST_P(TwoStagesTest, SumsOfNormsAreInTheStatedOrder) {
  for (const ThreadOrder order : kOrders) {
    const auto backend = CreateEmulatedBackend(order);
    for (const Sizes s : {Sizes{9, 132}, Sizes{300, 261}}) {
      ExpectNormsInStatedOrder(*backend, s, /*offset=*/0, /*accumulate=*/false);
      ExpectNormsInStatedOrder(*backend, s, /*offset=*/1, /*accumulate=*/true);
    }
  }
}

TEST_P(TwoStagesTest, SquaresOfBlocksAreAddedInOrder) {
  constexpr std::int64_t kCount = 300 * kSquaresPerBlock + 5;  // more than are loaded at a time
  const Floats values = testing::Random(kCount, 1);
  for (const ThreadOrder order : kOrders) {
    const auto backend = CreateEmulatedBackend(order);
    std::vector<double> blocks(301);
    RunOp(*backend,
          SumOfSquares{.input = values.data(), .count = kCount, .block_sums = blocks.data()});
    double expected = 0, result = 0;
    for (const double block : blocks) expected += block;
    RunOp(*backend, SumOfSquares{.input = values.data(), .result = &result, .count = kCount});
    EXPECT_EQ(result, expected);
  }
}

}  // namespace
}  // namespace takt::backend::cuda
