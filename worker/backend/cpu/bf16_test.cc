// SPDX-License-Identifier: Apache-2.0
// Tests products in bf16 on every instruction set: by this machine's bf16 instructions, and in f32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "common/layout/packed_matrix.h"
#include "gmock/gmock.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

struct Product {
  std::int64_t m, n, k;
};

// Returns the [m,n] sums of a(i,p) b(p,j) over p.
template <class A, class B>
Doubles Multiply(const Product& s, const A& a, const B& b) {
  Doubles c;
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < s.k; ++p) sum += ToDouble(a(i, p)) * ToDouble(b(p, j));
      c.push_back(sum);
    }
  }
  return c;
}

class Bf16Test : public OpTest {
 protected:
  Bf16s Pack(const Floats& b, bool transposed, std::int64_t k, std::int64_t n) {
    Bf16s packed(static_cast<std::size_t>(layout::PackedElements(k, n)), Bf16{0x7fc0});
    Run(PackBf16{.b = b.data(), .transposed = transposed, .packed = packed.data(), .k = k, .n = n});
    return packed;
  }

  // These sizes have rows and columns of every kind of remainder, in one block and in several.
  const std::vector<Product> shapes_ = {{1, 1, 1},       {1, 131, 12},   {19, 36, 37},
                                        {7, 64, 32},     {300, 131, 33}, {64, 200, 65},
                                        {1024, 777, 40}, {48, 70, 1100}};
};

TEST_P(Bf16Test, ProductIsThatOfRoundedOperands) {
  for (const Product s : shapes_) {
    for (const bool transposed : {false, true}) {
      const Floats a = Random(s.m * s.k, 1), b = Random(s.k * s.n, 2);
      const Floats bias = Random(s.n, 3), addend = Random(s.m * s.n, 4);
      const Bf16s a16 = NearestOf(a), b16 = NearestOf(b);
      const Bf16s packed = Pack(b, transposed, s.k, s.n);
      Doubles expected = Multiply(
          s, [&](auto i, auto p) { return a16[i * s.k + p]; },
          [&](auto p, auto j) { return b16[transposed ? j * s.k + p : p * s.n + j]; });
      const double allowed = SumTolerance(s.k, 2 * std::sqrt(static_cast<double>(s.k)));
      MatmulBf16 op{.a = a.data(), .b = packed.data(), .m = s.m, .n = s.n, .k = s.k};

      Floats c = Unset(s.m * s.n);
      op.c = c.data();
      Run(op);
      ExpectNear(c, expected, allowed, "a b");

      Floats of_rounded = Unset(s.m * s.n);
      op.a = a16.data();
      op.c = of_rounded.data();
      Run(op);
      EXPECT_EQ(of_rounded, c);

      Floats sum = addend;
      op.bias = bias.data();
      op.addend = sum.data();
      op.c = sum.data();
      Run(op);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += static_cast<double>(bias[i % bias.size()]) + addend[i];
      }
      ExpectNear(sum, expected, allowed, "a b + bias + addend");

      const Bf16s addend16 = NearestOf(addend);
      Bf16s rounded(addend16.size(), Bf16{0x7fc0}), in_place = addend16;
      op.addend = addend16.data();
      op.c = rounded.data();
      Run(op);
      op.addend = op.c = in_place.data();
      Run(op);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] += static_cast<double>(ToFloat(addend16[i])) - addend[i];
      // A backend may round the bias first, or add it to a product that is rounded.
      const auto near = [&](std::size_t i) {
        const double parts = std::abs(bias[i % bias.size()]) + std::abs(ToFloat(addend16[i]));
        return allowed + kUnit * 2 * (allowed + std::abs(expected[i]) + parts);
      };
      ExpectNear(Widened(rounded), expected, near, "a b + bias + addend, rounded");
      ExpectNear(Widened(in_place), expected, near, "the same in place");
    }
  }
}

TEST_P(Bf16Test, FactorsInRowsNeedNoPacking) {
  for (const Product s : {Product{3, 24, 37}, {65, 131, 64}, {200, 72, 100}}) {
    for (const bool transposed : {false, true}) {
      const std::int64_t columns = (transposed ? s.k : s.n) / 8 * 8;  // whole vectors
      const Product size{s.m, transposed ? s.n : columns, transposed ? columns : s.k};
      const std::int64_t rows = transposed ? size.n : size.k;
      const Floats a = Random(size.m * size.k, 1), b = Random(rows * columns, 2);
      const Bf16s a16 = NearestOf(a), b16 = NearestOf(b);
      Bf16s stored = b16;
      stored.resize(static_cast<std::size_t>(layout::RoundedElements(rows, columns)), Bf16{0});
      Floats c = Unset(size.m * size.n);
      Run(MatmulBf16{.a = a.data(),
                     .b = stored.data(),
                     .stored = transposed ? StoredB::kTransposedRows : StoredB::kRows,
                     .c = c.data(),
                     .m = size.m,
                     .n = size.n,
                     .k = size.k});
      const Doubles expected = Multiply(
          size, [&](auto i, auto p) { return a16[i * size.k + p]; },
          [&](auto p, auto j) { return b16[transposed ? j * columns + p : p * columns + j]; });
      ExpectNear(c, expected, SumTolerance(size.k, 2 * std::sqrt(static_cast<double>(size.k))),
                 transposed ? "a b^T" : "a b");
    }
  }
}

TEST_P(Bf16Test, TransposedProductIsThatOfRoundedOperands) {
  for (const Product s : shapes_) {
    const Floats a = Random(s.k * s.m, 1), b = Random(s.k * s.n, 2), before = Random(s.m * s.n, 3);
    const Bf16s a16 = NearestOf(a), b16 = NearestOf(b);
    Doubles expected = Multiply(
        s, [&](auto i, auto p) { return a16[p * s.m + i]; },
        [&](auto p, auto j) { return b16[p * s.n + j]; });
    const double allowed = SumTolerance(s.k, 2 * std::sqrt(static_cast<double>(s.k)));
    Floats c = Unset(s.m * s.n);
    Run(MatmulTransposedBf16{
        .a = a.data(), .b = b16.data(), .c = c.data(), .m = s.m, .n = s.n, .k = s.k});
    ExpectNear(c, expected, allowed, "a^T b");

    Floats sum = before;
    Run(MatmulTransposedBf16{.a = a16.data(),
                             .b = b.data(),
                             .c = sum.data(),
                             .accumulate = true,
                             .m = s.m,
                             .n = s.n,
                             .k = s.k});
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    ExpectNear(sum, expected, allowed, "c + a^T b");
  }
}

// The product of an operand with 1 shows what it is rounded to.
TEST_P(Bf16Test, RoundsToNearestEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Floats values = {1.0F,
                         0x1.01p0F,
                         0x1.03p0F,
                         0x1.010002p0F,
                         0x1.00fffep0F,
                         -0x1.03p0F,
                         0x1.ffp0F,
                         0x1.fep127F,
                         0x1.fefffep127F,
                         0x1.ffp127F,
                         kInfinity,
                         -kInfinity,
                         std::bit_cast<float>(0x7fffffffU),
                         std::bit_cast<float>(0xff800001U)};
  const Floats expected = {1.0F,       1.0F,       0x1.04p0F,   0x1.02p0F,   1.0F,
                           -0x1.04p0F, 2.0F,       0x1.fep127F, 0x1.fep127F, kInfinity,
                           kInfinity,  -kInfinity, kNan,        kNan};
  const std::int64_t n = std::ssize(values);
  const Floats one = {1};
  Floats as_a = Unset(n), as_b = Unset(n);
  const Bf16s packed_one = Pack(one, false, 1, 1), packed_values = Pack(values, false, 1, n);
  Run(MatmulBf16{
      .a = values.data(), .b = packed_one.data(), .c = as_a.data(), .m = n, .n = 1, .k = 1});
  Run(MatmulBf16{
      .a = one.data(), .b = packed_values.data(), .c = as_b.data(), .m = 1, .n = n, .k = 1});
  EXPECT_THAT(as_a, ::testing::Pointwise(::testing::NanSensitiveFloatEq(), expected));
  EXPECT_THAT(as_b, ::testing::Pointwise(::testing::NanSensitiveFloatEq(), expected));
}

TEST_P(Bf16Test, OutputsAreRoundedOnesOfF32) {
  const std::int64_t rows = 5, columns = 37, count = rows * columns;
  const Floats x = Random(count, 1), up = Random(count, 2);
  const Floats weight = Random(columns, 3), bias = Random(columns, 4);
  Floats mean = Unset(rows), rstd = Unset(rows);
  const auto expect_rounded = [&](auto op, const char* what) {
    Floats f32 = Unset(count);
    op.output = f32.data();
    Run(op);
    Bf16s bf16(f32.size() + 1, Bf16{0x1234});  // one more, which must stay
    op.output = bf16.data();
    Run(op);
    for (std::size_t i = 0; i < f32.size(); ++i) {
      ASSERT_EQ(bf16[i].bits, Nearest(f32[i]).bits) << what << " " << i;
    }
    EXPECT_EQ(bf16.back().bits, 0x1234) << what;
  };
  expect_rounded(LayerNormForward{.input = x.data(),
                                  .weight = weight.data(),
                                  .bias = bias.data(),
                                  .mean = mean.data(),
                                  .rstd = rstd.data(),
                                  .rows = rows,
                                  .columns = columns},
                 "layer norm");
  expect_rounded(RmsNormForward{.input = x.data(),
                                .weight = weight.data(),
                                .rstd = rstd.data(),
                                .rows = rows,
                                .columns = columns},
                 "rms norm");
  expect_rounded(GeluForward{.input = x.data(), .count = count}, "gelu");
  expect_rounded(SwigluForward{.gate = x.data(), .up = up.data(), .columns = count}, "swiglu");
}

TEST_P(Bf16Test, GivesTheSameBitsForAnyNumberOfThreads) {
  if (GetParam() == "cuda") GTEST_SKIP() << "a GPU has no number of threads";
  for (const Product s : {Product{513, 777, 96}, Product{96, 1600, 257}}) {
    const Floats a = Random(s.m * s.k, 1), b = Random(s.k * s.n, 2);
    Floats first, first_transposed;
    for (const int threads : {1, 2, 3}) {
      backend_ = CreateOrDie({.threads = threads, .instruction_set = GetParam()});
      const Bf16s packed = Pack(b, false, s.k, s.n);
      Floats c = Unset(s.m * s.n), transposed = Unset(s.m * s.n);
      Run(MatmulBf16{
          .a = a.data(), .b = packed.data(), .c = c.data(), .m = s.m, .n = s.n, .k = s.k});
      Run(MatmulTransposedBf16{
          .a = a.data(), .b = b.data(), .c = transposed.data(), .m = s.m, .n = s.n, .k = s.k});
      if (threads == 1) {
        first = c;
        first_transposed = transposed;
      }
      EXPECT_EQ(c, first) << threads;
      EXPECT_EQ(transposed, first_transposed) << threads;
    }
  }
}

TEST(Bf16, RefusesWhatIsNotThere) {
  const auto backend = CreateOrDie({});
  EXPECT_EQ(backend->Run(MatmulBf16{.m = 1, .n = 1, .k = 1}).message(), "MatmulBf16.a is null");
  EXPECT_EQ(backend->Run(MatmulTransposedBf16{.m = 1, .n = 0, .k = 1}).message(),
            "MatmulTransposedBf16.n is 0, must be at least 1");
  EXPECT_EQ(backend->Run(PackBf16{.k = 1, .n = 1}).message(), "PackBf16.b is null");
}

TEST(Bf16, RefusesRowsThatProductsCannotRead) {
  const auto backend = CreateOrDie({});
  const Bf16s b(64);
  const Floats a(64);
  Floats c(64);
  MatmulBf16 op{.a = a.data(), .b = b.data(), .stored = StoredB::kRows, .c = c.data()};
  op.m = 1, op.n = 7, op.k = 8;
  EXPECT_EQ(backend->Run(op).message(), "MatmulBf16: rows of b must be whole vectors of 8");
  op.stored = StoredB::kTransposedRows;
  EXPECT_TRUE(backend->Run(op).ok());
  op.k = 7;
  EXPECT_EQ(backend->Run(op).message(), "MatmulBf16: rows of b must be whole vectors of 8");
  op.k = 8;
  op.a_fp8 = {.scaling = Fp8Scaling::kTensor, .operand = Fp8Operand::kActivation};
  EXPECT_EQ(backend->Run(op).message(), "MatmulBf16: a product in FP8 needs b packed");
}

// Places [rows,columns] in rows of `stride`, with `fill` between them.
Bf16s Spread(const Bf16s& dense, std::int64_t columns, std::int64_t stride, Bf16 fill) {
  const std::int64_t rows = std::ssize(dense) / columns;
  Bf16s spread(static_cast<std::size_t>(rows * stride), fill);
  for (std::int64_t i = 0; i < std::ssize(dense); ++i) {
    spread[static_cast<std::size_t>(i / columns * stride + i % columns)] = dense[i];
  }
  return spread;
}

constexpr std::int64_t Eights(std::int64_t n) { return (n + 7) / 8 * 8; }

TEST_P(Bf16Test, ProductInBf16WithStridesIsTheOneInF32Rounded) {
  constexpr Bf16 kUntouched{0x4242};
  for (const Product s : {Product{3, 12, 37}, Product{70, 131, 64}}) {
    const Bf16s a = NearestOf(Random(s.m * s.k, 1));
    const Bf16s packed = Pack(Random(s.k * s.n, 2), false, s.k, s.n);
    const Floats bias = Random(s.n, 3);
    Floats expected = Unset(s.m * s.n);
    MatmulBf16 op{.a = a.data(),
                  .b = packed.data(),
                  .c = expected.data(),
                  .bias = bias.data(),
                  .m = s.m,
                  .n = s.n,
                  .k = s.k};
    Run(op);
    op.a_stride = Eights(s.k) + 8;
    op.c_stride = Eights(s.n) + 8;
    const Bf16s a_spread = Spread(a, s.k, op.a_stride, Bf16{});
    Bf16s c(static_cast<std::size_t>(s.m * op.c_stride), kUntouched);
    op.a = a_spread.data();
    op.c = c.data();
    Run(op);
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < op.c_stride; ++j) {
        const Bf16 actual = c[static_cast<std::size_t>(i * op.c_stride + j)];
        if (j >= Eights(s.n)) {
          ASSERT_EQ(actual.bits, kUntouched.bits) << i << " " << j;
        }
        if (j >= s.n) continue;
        // The bias may be rounded, and added to a number that is already rounded.
        const double product = expected[static_cast<std::size_t>(i * s.n + j)];
        const double bias_size = std::abs(bias[static_cast<std::size_t>(j)]);
        ASSERT_NEAR(ToDouble(actual), product,
                    kUnit * (2 * std::abs(product) + 2 * bias_size) + SumTolerance(s.k, 16))
            << i << " " << j;
      }
    }
  }
}

// The tolerance of a product that may have been rounded before.
TEST_P(Bf16Test, GeluAndItsGradientFollowTheProduct) {
  const Product s = {40, 72, 24};
  const std::int64_t count = s.m * s.n;
  const Bf16s a = NearestOf(Random(s.m * s.k, 1, 0.3F));
  const Bf16s packed = Pack(Random(s.k * s.n, 2), false, s.k, s.n);
  Floats product = Unset(count), expected = Unset(count);
  MatmulBf16 op{
      .a = a.data(), .b = packed.data(), .c = product.data(), .m = s.m, .n = s.n, .k = s.k};
  Run(op);
  Bf16s inner(product.size(), Bf16{0x7fc0}), c = inner;
  op.c = c.data();
  op.inner = inner.data();
  op.activation = Activation::kGelu;
  Run(op);
  const auto sum = [&](std::size_t i) {
    return SumTolerance(s.k, 4) + kUnit * std::abs(product[i]);
  };
  ExpectNear(Widened(inner), ToDoubles(product), sum, "inner");
  Run(GeluForward{.input = product.data(), .output = expected.data(), .count = count});
  // GELU's slope is less than 1.13.
  ExpectNear(
      Widened(c), ToDoubles(expected),
      [&](std::size_t i) { return 1.13 * sum(i) + kUnit * std::abs(expected[i]); }, "gelu");
  op.activation = Activation::kGeluGrad;
  Run(op);
  const Floats kept = Widened(inner);
  Run(GeluBackward{.input = kept.data(),
                   .d_output = product.data(),
                   .d_input = expected.data(),
                   .count = count});
  ExpectNear(
      Widened(c), ToDoubles(expected),
      [&](std::size_t i) { return 1.13 * sum(i) + kUnit * std::abs(expected[i]); }, "gradient");
}

TEST_P(Bf16Test, WeightGradientWithStridesAndSumsOfColumns) {
  const Product s = {36, 72, 70};
  const Bf16s a = NearestOf(Random(s.k * s.m, 1)), b = NearestOf(Random(s.k * s.n, 2));
  Floats expected = Random(s.m * s.n, 3), c = expected;
  MatmulTransposedBf16 op{.a = a.data(),
                          .b = b.data(),
                          .c = expected.data(),
                          .accumulate = true,
                          .m = s.m,
                          .n = s.n,
                          .k = s.k};
  Run(op);
  const Bf16s a_spread = Spread(a, s.m, s.m + 20, Bf16{});
  const Floats before = Random(s.n, 4);
  Floats sums = before;
  op.a = a_spread.data();
  op.a_stride = s.m + 20;
  op.c = c.data();
  op.column_sums = sums.data();
  Run(op);
  ExpectNear(c, ToDoubles(expected), SumTolerance(s.k, 16), "c");
  Doubles expected_sums = ToDoubles(before);
  for (std::size_t i = 0; i < b.size(); ++i) expected_sums[i % sums.size()] += ToDouble(b[i]);
  ExpectNear(sums, expected_sums, SumTolerance(s.k, 8), "sums");
  op.accumulate = false;
  std::ranges::fill(sums, kNan);
  Run(op);
  for (std::size_t i = 0; i < sums.size(); ++i) expected_sums[i] -= before[i];
  ExpectNear(sums, expected_sums, SumTolerance(s.k, 8), "sums that overwrite");
}

TEST_P(Bf16Test, SumsThatMayWaitAreCompleteAfterTheNextThatMayNot) {
  const Product first = {36, 72, 70}, second = {16, 40, 70};
  struct Tensors {
    Floats c, sums;
  };
  const auto compute = [&](bool may_wait) {
    std::vector<Tensors> computed;
    std::vector<Bf16s> operands;
    std::vector<MatmulTransposedBf16> ops;
    for (const Product& s : {first, first, second}) {
      const auto seed = static_cast<unsigned>(10 * operands.size());
      operands.push_back(NearestOf(Random(s.k * s.m, seed + 1)));
      operands.push_back(NearestOf(Random(s.k * s.n, seed + 2)));
      computed.push_back({Random(s.m * s.n, seed + 3), Random(s.n, seed + 4)});
    }
    for (std::size_t i = 0; i < computed.size(); ++i) {
      const Product& s = i < 2 ? first : second;
      Tensors& to = computed[i < 2 ? 0 : i];  // the second op adds to what the first one has added
      ops.push_back({.a = operands[2 * i].data(),
                     .b = operands[2 * i + 1].data(),
                     .c = to.c.data(),
                     .column_sums = to.sums.data(),
                     .sums_may_wait = may_wait && i < 2,
                     .accumulate = true,
                     .m = s.m,
                     .n = s.n,
                     .k = s.k});
    }
    for (const MatmulTransposedBf16& op : ops) Run(op);
    return computed;
  };
  const std::vector<Tensors> expected = compute(false), got = compute(true);
  for (const std::size_t i : {0, 2}) {
    EXPECT_EQ(got[i].c, expected[i].c) << i;
    EXPECT_EQ(got[i].sums, expected[i].sums) << i;
  }
}

TEST_P(Bf16Test, FormsThatDoNotExistAreRefused) {
  Bf16 half{};
  float number = 0;
  const auto refusal = [&](const Op& op) { return std::string(backend_->Run(op).message()); };
  MatmulBf16 op{.a = &half, .b = &half, .c = &half, .addend = &number, .m = 1, .n = 1, .k = 1};
  EXPECT_EQ(refusal(op), "MatmulBf16: addend must have c's type");
  op.addend = &half;
  op.activation = Activation::kGelu;
  EXPECT_EQ(refusal(op), "MatmulBf16: an activation takes no addend");
  op.addend = nullptr;
  EXPECT_EQ(refusal(op), "MatmulBf16: an activation needs inner");
  op.inner = &half;
  op.c = &number;
  EXPECT_EQ(refusal(op), "MatmulBf16: an activation needs c in bf16 and dense");
  op.c = &half;
  op.bias = &number;
  op.activation = Activation::kGeluGrad;
  EXPECT_EQ(refusal(op), "MatmulBf16: kGeluGrad takes no bias");
  EXPECT_EQ(
      refusal(GeluBackward{.input = &half, .d_output = &number, .d_input = &half, .count = 1}),
      "GeluBackward: its tensors must be all in f32 or all in bf16");
  EXPECT_EQ(refusal(GeluForward{.input = &half, .output = &number, .count = 1}),
            "GeluForward: what comes in bf16 must be written in bf16");
  const std::int32_t target = 0;
  SoftmaxPart part;
  EXPECT_EQ(refusal(SoftmaxBlock{.logits = &half,
                                 .targets = &target,
                                 .parts = &part,
                                 .rows = 1,
                                 .columns = 2,
                                 .stride = 1}),
            "SoftmaxBlock.stride is 1, must be at least 2");
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Bf16Test, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
