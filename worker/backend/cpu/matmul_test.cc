// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/matmul.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

enum class Addend { kNone, kOther, kOutput };

struct Product {
  std::int64_t m, n, k;
};

class MatmulTest : public ::testing::TestWithParam<std::tuple<Product, bool, bool, bool, Addend>> {
};

TEST_P(MatmulTest, AgreesWithProductInDouble) {
  const auto [shape, a_transposed, b_transposed, with_bias, addend] = GetParam();
  const auto [m, n, k] = shape;
  const Floats a = Random(m * k, 1), b = Random(k * n, 2), bias = Random(n, 3),
               other = Random(m * n, 4);
  Floats c = addend == Addend::kOutput ? other : Unset(m * n);
  Matmul op{.a = a.data(), .b = b.data(), .c = c.data(), .m = m, .n = n, .k = k};
  op.a_transposed = a_transposed;
  op.b_transposed = b_transposed;
  if (with_bias) op.bias = bias.data();
  if (addend == Addend::kOther) op.addend = other.data();
  if (addend == Addend::kOutput) op.addend = c.data();
  const auto backend = CreateOrDie({.threads = 2});
  ASSERT_TRUE(backend->Run(op).ok());

  Doubles expected;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = with_bias ? bias[static_cast<std::size_t>(j)] : 0.0;
      if (addend != Addend::kNone) sum += other[static_cast<std::size_t>(i * n + j)];
      for (std::int64_t p = 0; p < k; ++p) {
        sum +=
            static_cast<double>(a[static_cast<std::size_t>(a_transposed ? p * m + i : i * k + p)]) *
            b[static_cast<std::size_t>(b_transposed ? j * k + p : p * n + j)];
      }
      expected.push_back(sum);
    }
  }
  // Sums of k products of normal numbers have size sqrt(k). So have their roundings, each relative
  // to the running sum.
  ExpectNear(c, expected, SumTolerance(k, 2 * std::sqrt(static_cast<double>(k))), "c");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MatmulTest,
    ::testing::Combine(::testing::Values(Product{1, 1, 1}, Product{1, 131, 48}, Product{7, 12, 5},
                                         Product{300, 131, 33}, Product{1024, 20, 37},
                                         Product{48, 70, 1100}),
                       ::testing::Bool(), ::testing::Bool(), ::testing::Bool(),
                       ::testing::Values(Addend::kNone, Addend::kOther, Addend::kOutput)));

// Only the widest instruction set of a machine packs b, and only if it is AVX2. Rows of b are a
// multiple of 4 KiB apart, or of a number that no part divides, and a block has columns for more
// than one part.
TEST(RunMatmulBlock, PackingChangesNoBit) {
  if (!MultipliesWithAvx2(*RunnableKernels().front()))
    GTEST_SKIP() << "nothing is packed on this machine";
  constexpr std::int64_t kRows = 100;
  constexpr MatmulBlocks kBlocks = {.rows = kRows, .columns = 1600, .per_row = 2, .count = 2};
  for (const auto& [columns, depth] : {std::pair(2048, 1024 + 256), {2048, 1100}, {2003, 1024}}) {
    const Floats a = Random(kRows * depth, 1), b = Random(depth * columns, 2);
    for (const auto& [a_transposed, adds] :
         {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
      std::vector<Floats> results;
      for (const Kernels* kernels : RunnableKernels()) {
        Floats& c = results.emplace_back(Random(kRows * columns, 3));
        Matmul op{.a = a.data(), .b = b.data(), .c = c.data()};
        op.m = kRows, op.n = columns, op.k = depth;
        op.a_transposed = a_transposed;
        if (adds) op.addend = c.data();
        std::vector<float> scratch;
        for (std::int64_t block = 0; block < kBlocks.count; ++block)
          ASSERT_TRUE(RunMatmulBlock(op, kBlocks, block, *kernels, scratch).ok());
        EXPECT_TRUE(c == results.front()) << kernels->name << " " << depth;
      }
    }
  }
}

TEST(CutMatmul, CoversTheOutputWithEnoughBlocksForLargeShapes) {
  for (const Product shape :
       {Product{1, 1, 1}, Product{256, 256, 256}, Product{2048, 768, 3072},
        Product{2048, 50257, 768}, Product{50257, 768, 2048}, Product{131, 97, 1000000}}) {
    for (const int transposed : {0, 1, 2, 3}) {
      Matmul op{.m = shape.m, .n = shape.n, .k = shape.k};
      op.a_transposed = (transposed & 1) != 0;
      op.b_transposed = (transposed & 2) != 0;
      const MatmulBlocks blocks = CutMatmul(op);
      const std::int64_t down = blocks.count / blocks.per_row;
      EXPECT_EQ(blocks.count % blocks.per_row, 0);
      EXPECT_GE(down * blocks.rows, shape.m);
      EXPECT_LT((down - 1) * blocks.rows, shape.m);
      EXPECT_GE(blocks.per_row * blocks.columns, shape.n);
      EXPECT_LT((blocks.per_row - 1) * blocks.columns, shape.n);
      if (shape.m * shape.n >= 512 * 512) {
        EXPECT_GE(blocks.count, 8);
      }
    }
  }
}

// A backend whose k-th matmul takes `nanos[k]`, and later ones as long as the last.
class TimedBackend final : public Backend {
 public:
  TimedBackend(std::vector<std::int64_t> nanos, FakeClock* clock)
      : nanos_(std::move(nanos)), clock_(clock) {}

  absl::Status Run(const Op& op) override {
    if (std::holds_alternative<Fill>(op)) return absl::OkStatus();
    clock_->Advance(absl::Nanoseconds(nanos_[std::min(num_matmuls_, nanos_.size() - 1)]));
    ++num_matmuls_;
    return absl::OkStatus();
  }
  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    return memory_->Allocate(bytes, kind);
  }
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    return memory_->AllocateHost(bytes);
  }
  absl::Status CopyFromHost(std::span<const std::byte>, std::byte*) override {
    return absl::OkStatus();
  }
  absl::Status CopyToHost(const std::byte*, std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  Stream* stream() override { return nullptr; }
  bool memory_is_host() const override { return true; }
  std::string description() const override { return "timed"; }

  std::size_t num_matmuls() const { return num_matmuls_; }

 private:
  const std::unique_ptr<Backend> memory_ = CreateOrDie({.threads = 1});
  const std::vector<std::int64_t> nanos_;
  FakeClock* const clock_;
  std::size_t num_matmuls_ = 0;
};

constexpr double kMeasuredFlops = 2.0 * 512 * 512 * 512;

TEST(MeasureMatmuls, IsTheBestRoundAfterTheFirst) {
  FakeClock clock;
  TimedBackend backend({1, 90'000'000, 100'000'000, 2'000'000, 80'000'000}, &clock);
  const MatmulRates rates = MeasureMatmuls(backend, clock).value();
  EXPECT_DOUBLE_EQ(rates.f32, kMeasuredFlops / 2e-3);
  EXPECT_DOUBLE_EQ(rates.bf16, kMeasuredFlops / 80e-3);
  EXPECT_DOUBLE_EQ(rates.fp8, kMeasuredFlops / 80e-3);
}

TEST(MeasureMatmuls, EndsWithTheBudgetOrWithTheFewestRounds) {
  FakeClock clock;
  TimedBackend slow({1'000'000'000}, &clock);
  ASSERT_TRUE(MeasureMatmuls(slow, clock).ok());
  EXPECT_EQ(slow.num_matmuls(), 3 * 6u);
  TimedBackend quick({5'000'000}, &clock);
  ASSERT_TRUE(MeasureMatmuls(quick, clock).ok());
  EXPECT_EQ(quick.num_matmuls(), 3 * 11u);
  TimedBackend instant({1}, &clock);
  ASSERT_TRUE(MeasureMatmuls(instant, clock).ok());
  EXPECT_EQ(instant.num_matmuls(), 3 * 41u);
}

TEST(MeasureMatmuls, OfThisMachineIsPositive) {
  const MatmulRates rates = MeasureMatmuls(*CreateOrDie({.threads = 2})).value();
  EXPECT_GT(rates.f32, 1e8);
  EXPECT_GT(rates.bf16, 1e8);
  EXPECT_GT(rates.fp8, 1e7);
}

}  // namespace
}  // namespace takt::backend::testing
