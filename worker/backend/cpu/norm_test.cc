// SPDX-License-Identifier: Apache-2.0
// Tests layer norm and column sums against references in double.
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

constexpr double kNormEpsilon = 1e-5;

// Returns the norm of every row of x[rows, columns] with weight and bias.
Doubles LayerNorm(const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const std::size_t columns = weight.size();
  Doubles y(x.size());
  for (std::size_t r = 0; r < x.size(); r += columns) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns; ++i) mean += x[r + i] / static_cast<double>(columns);
    for (std::size_t i = 0; i < columns; ++i) {
      variance += (x[r + i] - mean) * (x[r + i] - mean) / static_cast<double>(columns);
    }
    for (std::size_t i = 0; i < columns; ++i) {
      y[r + i] = (x[r + i] - mean) / std::sqrt(variance + kNormEpsilon) * weight[i] + bias[i];
    }
  }
  return y;
}

struct Sizes {
  std::int64_t rows, columns;
};
constexpr Sizes kSizes[] = {{1, 1}, {1, 12}, {3, 16}, {5, 48}, {70, 37}, {130, 8}};

class LayerNormTest : public OpTest {
 protected:
  void Forward(Sizes sizes) {
    const auto [rows, columns] = sizes;
    x_ = Random(rows * columns, 1, 2);
    weight_ = Random(columns, 3);
    bias_ = Random(columns, 4);
    output_ = Unset(rows * columns);
    mean_ = Unset(rows);
    rstd_ = Unset(rows);
    Run(LayerNormForward{.input = x_.data(),
                         .weight = weight_.data(),
                         .bias = bias_.data(),
                         .output = output_.data(),
                         .mean = mean_.data(),
                         .rstd = rstd_.data(),
                         .rows = rows,
                         .columns = columns});
  }
  Floats weight_, bias_, x_, output_, mean_, rstd_;
};

TEST_P(LayerNormTest, ForwardAgreesWithDouble) {
  for (const Sizes sizes : kSizes) {
    Forward(sizes);
    ExpectNear(output_, LayerNorm(ToDoubles(x_), ToDoubles(weight_), ToDoubles(bias_)),
               SumTolerance(sizes.columns, 8), "output");
  }
}

TEST_P(LayerNormTest, BackwardAgreesWithFiniteDifferences) {
  for (const Sizes sizes : kSizes) {
    if (sizes.columns == 1) continue;  // x - mean is 0, so only rounding is left
    const auto [rows, columns] = sizes;
    Forward(sizes);
    const Floats d_output = Random(rows * columns, 5),
                 residual_gradient = Random(rows * columns, 6);
    const Doubles x = ToDoubles(x_), weight = ToDoubles(weight_), bias = ToDoubles(bias_);
    for (const bool in_place : {false, true}) {
      Floats d_input = in_place ? residual_gradient : Unset(rows * columns);
      Run(LayerNormBackwardInput{.d_output = d_output.data(),
                                 .x = x_.data(),
                                 .weight = weight_.data(),
                                 .mean = mean_.data(),
                                 .rstd = rstd_.data(),
                                 .residual_gradient = in_place ? Operand(d_input.data()) : nullptr,
                                 .d_input = d_input.data(),
                                 .rows = rows,
                                 .columns = columns});
      Doubles expected = FiniteDifferences(
          [&](const Doubles& v) { return LayerNorm(v, weight, bias); }, x, d_output);
      if (in_place) {
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual_gradient[i];
      }
      ExpectNear(d_input, expected, SumTolerance(columns, 32), "d_input");
    }
    const Floats before = Random(columns, 7);
    for (const bool accumulate : {false, true}) {
      Floats d_weight = accumulate ? before : Unset(columns), d_bias = d_weight;
      Run(LayerNormBackwardWeights{.d_output = d_output.data(),
                                   .x = x_.data(),
                                   .mean = mean_.data(),
                                   .rstd = rstd_.data(),
                                   .d_weight = d_weight.data(),
                                   .d_bias = d_bias.data(),
                                   .rows = rows,
                                   .columns = columns,
                                   .accumulate = accumulate});
      Doubles expected_weight = FiniteDifferences(
          [&](const Doubles& v) { return LayerNorm(x, v, bias); }, weight, d_output);
      Doubles expected_bias = FiniteDifferences(
          [&](const Doubles& v) { return LayerNorm(x, weight, v); }, bias, d_output);
      for (std::size_t i = 0; accumulate && i < before.size(); ++i) {
        expected_weight[i] += before[i];
        expected_bias[i] += before[i];
      }
      const double allowed = SumTolerance(rows, 4 * std::sqrt(static_cast<double>(rows)));
      ExpectNear(d_weight, expected_weight, allowed, "d_weight");
      ExpectNear(d_bias, expected_bias, allowed, "d_bias");
    }
  }
}

// Returns the sums over rows of terms[rows, columns], added to `before` if there is one.
Doubles ColumnSums(const Doubles& terms, std::int64_t columns, const Floats& before) {
  Doubles sums = ToDoubles(before);
  sums.resize(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < terms.size(); ++i) sums[i % sums.size()] += terms[i];
  return sums;
}

TEST_P(LayerNormTest, BackwardSumsRowsOnItsWay) {
  for (const Sizes sizes : {Sizes{70, 37}, Sizes{40, 260}, Sizes{3, 1100}}) {
    const auto [rows, columns] = sizes;
    Forward(sizes);
    const Floats d_output = Random(rows * columns, 5), residual = Random(rows * columns, 6);
    Doubles terms;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const std::size_t r = i / static_cast<std::size_t>(columns);
      terms.push_back(double{d_output[i]} * (double{x_[i]} - double{mean_[r]}) * double{rstd_[r]});
    }
    for (const bool accumulate : {false, true}) {
      const Floats before = accumulate ? Random(columns, 7) : Floats();
      Floats d_weight = accumulate ? before : Unset(columns), d_bias = d_weight,
             of_residual = d_weight, of_d_input = d_weight, d_input = residual;
      Bf16s rounded(d_input.size());
      Run(LayerNormBackwardInput{.d_output = d_output.data(),
                                 .x = x_.data(),
                                 .weight = weight_.data(),
                                 .mean = mean_.data(),
                                 .rstd = rstd_.data(),
                                 .residual_gradient = d_input.data(),
                                 .d_input = d_input.data(),
                                 .rounded = rounded.data(),
                                 .sums = {.d_weight = d_weight.data(),
                                          .d_bias = d_bias.data(),
                                          .of_residual_gradient = of_residual.data(),
                                          .of_d_input = of_d_input.data(),
                                          .accumulate = accumulate},
                                 .rows = rows,
                                 .columns = columns});
      const double allowed = SumTolerance(rows, 8 * std::sqrt(static_cast<double>(rows)));
      ExpectNear(d_weight, ColumnSums(terms, columns, before), allowed, "d_weight");
      ExpectNear(d_bias, ColumnSums(ToDoubles(d_output), columns, before), allowed, "d_bias");
      ExpectNear(of_residual, ColumnSums(ToDoubles(residual), columns, before), allowed,
                 "of_residual_gradient");
      ExpectNear(of_d_input, ColumnSums(ToDoubles(d_input), columns, before), allowed,
                 "of_d_input");
      for (std::size_t i = 0; i < rounded.size(); ++i)
        ASSERT_EQ(rounded[i].bits, Nearest(d_input[i]).bits) << "element " << i;
    }
  }
}

TEST_P(LayerNormTest, KeepsAccuracyWhenTheMeanIsLarge) {
  const std::int64_t columns = 64;
  Floats x = Random(columns, 1);
  for (float& value : x) value += 1000;
  const Floats weight(columns, 1), bias(columns, 0);
  Floats output = Unset(columns), mean = Unset(1), rstd = Unset(1);
  Run(LayerNormForward{.input = x.data(),
                       .weight = weight.data(),
                       .bias = bias.data(),
                       .output = output.data(),
                       .mean = mean.data(),
                       .rstd = rstd.data(),
                       .rows = 1,
                       .columns = columns});
  ExpectNear(output, LayerNorm(ToDoubles(x), ToDoubles(weight), ToDoubles(bias)),
             1000 * 4 * kEpsilon, "output");
}

class BiasGradTest : public OpTest {};

TEST_P(BiasGradTest, AddsColumnsUp) {
  for (const Sizes sizes : kSizes) {
    const auto [rows, columns] = sizes;
    const Floats d_output = Random(rows * columns, 1), before = Random(columns, 2);
    for (const bool accumulate : {false, true}) {
      Floats d_bias = accumulate ? before : Unset(columns);
      Run(BiasGrad{.d_output = d_output.data(),
                   .d_bias = d_bias.data(),
                   .rows = rows,
                   .columns = columns,
                   .accumulate = accumulate});
      Doubles expected =
          accumulate ? ToDoubles(before) : Doubles(static_cast<std::size_t>(columns));
      for (std::size_t i = 0; i < d_output.size(); ++i)
        expected[i % expected.size()] += d_output[i];
      ExpectNear(d_bias, expected, SumTolerance(rows, 2 * std::sqrt(static_cast<double>(rows))),
                 "d_bias");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LayerNormTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, BiasGradTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
