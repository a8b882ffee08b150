// SPDX-License-Identifier: Apache-2.0
// Tests RMS norm, rotary positions and SwiGLU against references in double.
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

constexpr double kNormEpsilon = 1e-5;

Doubles RmsNorm(const Doubles& x, const Doubles& weight) {
  const std::size_t columns = weight.size();
  Doubles y(x.size());
  for (std::size_t r = 0; r < x.size(); r += columns) {
    double squares = 0;
    for (std::size_t i = 0; i < columns; ++i) squares += x[r + i] * x[r + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + kNormEpsilon);
    for (std::size_t i = 0; i < columns; ++i) y[r + i] = x[r + i] * rstd * weight[i];
  }
  return y;
}

struct Sizes {
  std::int64_t rows, columns;
};
constexpr Sizes kSizes[] = {{1, 1}, {1, 12}, {3, 16}, {5, 48}, {70, 37}, {130, 8}};

class RmsNormTest : public OpTest {
 protected:
  void Forward(Sizes sizes) {
    x_ = Random(sizes.rows * sizes.columns, 1, 2);
    weight_ = Random(sizes.columns, 2);
    output_ = Unset(sizes.rows * sizes.columns);
    rstd_ = Unset(sizes.rows);
    Run(RmsNormForward{.input = x_.data(),
                       .weight = weight_.data(),
                       .output = output_.data(),
                       .rstd = rstd_.data(),
                       .rows = sizes.rows,
                       .columns = sizes.columns});
  }
  Floats x_, weight_, output_, rstd_;
};

TEST_P(RmsNormTest, ForwardAgreesWithDouble) {
  for (const Sizes sizes : kSizes) {
    Forward(sizes);
    ExpectNear(output_, RmsNorm(ToDoubles(x_), ToDoubles(weight_)), SumTolerance(sizes.columns, 8),
               "output");
  }
}

TEST_P(RmsNormTest, InputGradientAgreesWithFiniteDifferencesAndAddsTheResidual) {
  for (const Sizes sizes : kSizes) {
    Forward(sizes);
    const std::int64_t count = sizes.rows * sizes.columns;
    const Floats d_output = Random(count, 3), residual = Random(count, 4);
    const Doubles weight = ToDoubles(weight_);
    const Doubles alone = FiniteDifferences([&](const Doubles& v) { return RmsNorm(v, weight); },
                                            ToDoubles(x_), d_output);
    for (const bool in_place : {false, true}) {
      Floats d_input = in_place ? residual : Unset(count);
      Run(RmsNormBackwardInput{.d_output = d_output.data(),
                               .x = x_.data(),
                               .weight = weight_.data(),
                               .rstd = rstd_.data(),
                               .residual_gradient = in_place ? d_input.data() : nullptr,
                               .d_input = d_input.data(),
                               .rows = sizes.rows,
                               .columns = sizes.columns});
      Doubles expected = alone;
      for (std::size_t i = 0; in_place && i < expected.size(); ++i) expected[i] += residual[i];
      ExpectNear(d_input, expected, SumTolerance(sizes.columns, 32), "d_input");
    }
  }
}

TEST_P(RmsNormTest, WeightGradientAgreesWithFiniteDifferencesAndAccumulates) {
  for (const Sizes sizes : kSizes) {
    Forward(sizes);
    const Floats d_output = Random(sizes.rows * sizes.columns, 3),
                 before = Random(sizes.columns, 4);
    const Doubles x = ToDoubles(x_);
    const Doubles alone = FiniteDifferences([&](const Doubles& v) { return RmsNorm(x, v); },
                                            ToDoubles(weight_), d_output);
    for (const bool accumulate : {false, true}) {
      Floats d_weight = accumulate ? before : Unset(sizes.columns);
      Run(RmsNormBackwardWeights{.d_output = d_output.data(),
                                 .x = x_.data(),
                                 .rstd = rstd_.data(),
                                 .d_weight = d_weight.data(),
                                 .rows = sizes.rows,
                                 .columns = sizes.columns,
                                 .accumulate = accumulate});
      Doubles expected = alone;
      for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
      ExpectNear(d_weight, expected,
                 SumTolerance(sizes.rows, 4 * std::sqrt(static_cast<double>(sizes.rows))),
                 "d_weight");
    }
  }
}

class RotaryTest : public OpTest {};

TEST_P(RotaryTest, TurnsEachPairOfAHeadByItsAngleAndBack) {
  const std::int64_t batch = 2, context = 3, heads = 2, size = 12, half = size / 2, stride = 31;
  Floats table(context * size);
  for (std::int64_t t = 0; t < context; ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10.0, -static_cast<double>(i));
      table[t * size + i] = static_cast<float>(std::cos(angle));
      table[t * size + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  const Floats before = Random(batch * context * stride, 1);
  const std::int32_t starts[] = {0, 0, 2, 0, 1, 1};
  for (const bool apart : {false, true}) {
    Floats x = before;
    Rotary op{.x = x.data(),
              .table = table.data(),
              .batch = batch,
              .context = context,
              .heads = heads,
              .head_size = size,
              .stride = stride,
              .starts = apart ? starts : nullptr};
    Run(op);
    Doubles expected = ToDoubles(before);  // what lies between the rows must stay, too
    for (std::int64_t r = 0; r < batch * context; ++r) {
      const std::int64_t position = r % context - (apart ? starts[r] : 0);
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < half; ++i) {
          const std::int64_t low = r * stride + h * size + i;
          const double angle =
              static_cast<double>(position) * std::pow(10.0, -static_cast<double>(i));
          const double a = before[low], b = before[low + half];
          expected[low] = a * std::cos(angle) - b * std::sin(angle);
          expected[low + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    ExpectNear(x, expected, 16 * kEpsilon, "turned");
    op.inverse = true;
    Run(op);
    ExpectNear(x, ToDoubles(before), 16 * kEpsilon, "turned back");
  }
}

// Computes SwiGLU of gate and up side by side.
Doubles Swiglu(const Doubles& both) {
  const std::size_t count = both.size() / 2;
  Doubles y(count);
  for (std::size_t i = 0; i < count; ++i) {
    y[i] = both[i] / (1 + std::exp(-both[i])) * both[count + i];
  }
  return y;
}

class SwigluTest : public OpTest {};

TEST_P(SwigluTest, AgreesWithDoubleAlsoFarOut) {
  Floats both = Random(2 * 77, 1, 3);
  both[0] = 80;
  both[1] = -80;
  both[2] = -1000;
  Floats y(both.begin(), both.begin() + 77);  // in place
  Run(SwigluForward{.gate = y.data(), .up = both.data() + 77, .output = y.data(), .columns = 77});
  ExpectNear(
      y, Swiglu(ToDoubles(both)),
      [&](std::size_t i) { return 8 * kEpsilon * (1e-20 + std::abs(both[i] * both[77 + i])); },
      "output");
}

TEST_P(SwigluTest, BackwardAgreesWithFiniteDifferences) {
  const Floats both = Random(2 * 77, 1, 2), d_output = Random(77, 2);
  Floats d_both = both;  // in place
  Run(SwigluBackward{.gate = d_both.data(),
                     .up = d_both.data() + 77,
                     .d_output = d_output.data(),
                     .d_gate = d_both.data(),
                     .d_up = d_both.data() + 77,
                     .columns = 77});
  ExpectNear(d_both, FiniteDifferences(Swiglu, ToDoubles(both), d_output), 128 * kEpsilon,
             "d_gate and d_up");
}

TEST_P(SwigluTest, OfRowsSideBySideIsThatOfDenseOnes) {
  constexpr std::int64_t kRows = 5, kColumns = 37;
  const Floats gate = Random(kRows * kColumns, 1, 3), up = Random(kRows * kColumns, 2);
  const Floats d = Random(kRows * kColumns, 3);
  const auto row = [&](const Floats& dense, std::int64_t r) {
    return dense.begin() + r * kColumns;
  };
  Floats both;  // rows of gate and up in turns
  for (std::int64_t r = 0; r < kRows; ++r) {
    both.insert(both.end(), row(gate, r), row(gate, r + 1));
    both.insert(both.end(), row(up, r), row(up, r + 1));
  }
  Floats y = Unset(kRows * kColumns), y_of_both = y, d_gate = gate, d_up = up, d_both = both;
  SwigluForward forward{.gate = gate.data(), .up = up.data(), .output = y.data()};
  SwigluBackward backward{.gate = d_gate.data(),
                          .up = d_up.data(),
                          .d_output = d.data(),
                          .d_gate = d_gate.data(),
                          .d_up = d_up.data()};
  forward.rows = backward.rows = kRows;
  forward.columns = backward.columns = kColumns;
  Run(forward);
  Run(backward);
  forward.stride = backward.stride = 2 * kColumns;
  forward.gate = both.data(), forward.up = both.data() + kColumns,
  forward.output = y_of_both.data();
  backward.gate = backward.d_gate = d_both.data();
  backward.up = backward.d_up = d_both.data() + kColumns;
  Run(forward);
  Run(backward);
  EXPECT_EQ(y_of_both, y);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto gate_row = d_both.begin() + 2 * r * kColumns, up_row = gate_row + kColumns;
    EXPECT_TRUE(std::equal(gate_row, up_row, row(d_gate, r))) << r;
    EXPECT_TRUE(std::equal(up_row, up_row + kColumns, row(d_up, r))) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RmsNormTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, SwigluTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
