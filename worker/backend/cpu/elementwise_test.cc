// SPDX-License-Identifier: Apache-2.0
// Tests GELU, cross-entropy, AdamW and sums against references in double.
#include <algorithm>
#include <cstring>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

Doubles Gelu(const Doubles& x) {
  Doubles y;
  for (const double v : x)
    y.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
  return y;
}

class ElementwiseTest : public OpTest {};

TEST_P(ElementwiseTest, GeluAgreesWithDoubleNearZeroAndFarOut) {
  Floats x = Random(1000, 1, 3);
  x.insert(x.end(),
           {0.0F, -0.0F, 1e-20F, -1e-20F, 1e-4F, 30.0F, -30.0F, 1e4F, -1e4F, 1e30F, -1e30F});
  const auto count = static_cast<std::int64_t>(x.size());
  Floats y = Unset(count);
  Run(GeluForward{.input = x.data(), .output = y.data(), .count = count});
  const Doubles expected = Gelu(ToDoubles(x));
  // The tolerance is relative to x: where gelu(x) is much smaller than x, the reference's own 1 +
  // tanh cancels.
  ExpectNear(
      y, expected, [&](std::size_t i) { return 1e-30 + 8 * kEpsilon * std::abs(x[i]); }, "gelu");
}

TEST_P(ElementwiseTest, GeluBackwardAgreesWithFiniteDifferences) {
  const Floats x = Random(77, 1, 2), d_output = Random(77, 2);
  Floats d_input = d_output;  // in place
  Run(GeluBackward{
      .input = x.data(), .d_output = d_input.data(), .d_input = d_input.data(), .count = 77});
  ExpectNear(d_input, FiniteDifferences(Gelu, ToDoubles(x), d_output), 64 * kEpsilon, "d_input");
}

TEST_P(ElementwiseTest, GeluBackwardIsFiniteFarOut) {
  const Floats x = {30, -30, 1e4F, -1e4F, 1e15F, -1e15F}, d_output(6, 2);
  Floats d_input = Unset(6);
  Run(GeluBackward{
      .input = x.data(), .d_output = d_output.data(), .d_input = d_input.data(), .count = 6});
  ExpectNear(d_input, {2, 0, 2, 0, 2, 0}, 1e-6, "d_input");
}

class CrossEntropyTest : public OpTest {};

// Returns the losses of the rows; a row that is not scored has 0.
Doubles CrossEntropyLosses(const Doubles& logits, const std::vector<std::int32_t>& targets) {
  const std::size_t vocab = logits.size() / targets.size();
  Doubles losses;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(logits[r * vocab + i]);
    losses.push_back(targets[r] == kIgnoredTarget
                         ? 0
                         : std::log(sum) -
                               logits[r * vocab + static_cast<std::size_t>(targets[r])]);
  }
  return losses;
}

// Returns the blocks of so many columns of rows of logits, one behind the other.
std::vector<Floats> Cut(const Floats& logits, std::int64_t vocab, std::int64_t block_columns) {
  std::vector<Floats> blocks;
  const std::int64_t rows = static_cast<std::int64_t>(logits.size()) / vocab;
  for (std::int64_t first = 0; first < vocab; first += block_columns) {
    Floats& block = blocks.emplace_back();
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto row = logits.begin() + r * vocab;
      block.insert(block.end(), row + first, row + std::min(vocab, first + block_columns));
    }
  }
  return blocks;
}

// Does the reverse of Cut.
Floats Joined(const std::vector<Floats>& blocks, std::int64_t rows) {
  Floats logits;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (const Floats& block : blocks) {
      const std::int64_t columns = static_cast<std::int64_t>(block.size()) / rows;
      logits.insert(logits.end(), block.begin() + r * columns, block.begin() + (r + 1) * columns);
    }
  }
  return logits;
}

BlockedCrossEntropy<float> Over(Backend& backend, std::vector<Floats>& blocks,
                                const std::vector<std::int32_t>& targets) {
  std::vector<BlockedCrossEntropy<float>::Block> tensors;
  for (Floats& block : blocks) {
    tensors.push_back({.logits = block.data(),
                       .columns = static_cast<std::int64_t>(block.size() / targets.size())});
  }
  return {backend, std::move(tensors), targets};
}

TEST_P(CrossEntropyTest, LossAndGradientAgreeWithDouble) {
  const std::int64_t rows = 5;
  for (const auto& [vocab, block_columns] :
       {std::pair(1, 1), {2, 2}, {131, 131}, {2500, 2500}, {131, 64}, {2500, 1024}, {7, 1}}) {
    auto targets = RandomTokens(rows, vocab, 1);
    targets[2] = kIgnoredTarget;
    const Floats logits = Random(rows * vocab, 2, 3);
    const Doubles losses = CrossEntropyLosses(ToDoubles(logits), targets);
    double expected_loss = 0;
    for (const double loss : losses) expected_loss += loss;
    std::vector<Floats> blocks = Cut(logits, vocab, block_columns);
    BlockedCrossEntropy<float> cross_entropy = Over(*backend_, blocks, targets);
    const std::string what = std::to_string(vocab) + " by " + std::to_string(block_columns);
    EXPECT_NEAR(cross_entropy.Loss(0.25F), expected_loss, static_cast<double>(rows) * 32 * kEpsilon)
        << what;
    EXPECT_EQ(Joined(blocks, rows), logits);
    cross_entropy.Gradient();
    const Floats d_logits = Joined(blocks, rows);
    const Doubles expected = FiniteDifferences(
        [&](const Doubles& x) { return CrossEntropyLosses(x, targets); }, ToDoubles(logits),
        Floats(static_cast<std::size_t>(rows), 0.25F), static_cast<std::size_t>(vocab) / 40 + 1);
    ExpectNearWhereKnown(d_logits, expected, 32 * kEpsilon, "d_logits of " + what);
    for (std::int64_t i = 2 * vocab; i < 3 * vocab; ++i)
      ASSERT_EQ(d_logits[static_cast<std::size_t>(i)], 0);
  }
}

TEST_P(CrossEntropyTest, ASliceOfRowsHasTheirSoftmax) {
  const std::int64_t rows = 300, vocab = 40;
  auto targets = RandomTokens(rows, vocab, 1);
  targets[2] = kIgnoredTarget;
  std::vector<Floats> blocks = Cut(Random(rows * vocab, 2, 3), vocab, 16);
  BlockedCrossEntropy<float> cross_entropy = Over(*backend_, blocks, targets);
  cross_entropy.Loss(0.25F);
  for (const std::int64_t slice : {1, 7, 256, 300}) {
    const std::vector<SoftmaxRow> softmax = cross_entropy.SoftmaxBySlices(slice, 0.25F);
    for (std::size_t r = 0; r < targets.size(); ++r) {
      const SoftmaxRow& whole = cross_entropy.softmax()[r];
      ASSERT_EQ(softmax[r].factor, whole.factor) << "row " << r << " in slices of " << slice;
      ASSERT_EQ(softmax[r].max, whole.max);
      ASSERT_EQ(softmax[r].scale, whole.scale);
    }
  }
}

// No rounding is added where there is one block.
TEST_P(CrossEntropyTest, ASingleBlockIsTheSoftmaxOfTheRow) {
  const std::int64_t rows = 3, vocab = 1000;
  const auto targets = RandomTokens(rows, vocab, 1);
  std::vector<Floats> blocks = {Random(rows * vocab, 2, 3)};
  BlockedCrossEntropy<float> cross_entropy = Over(*backend_, blocks, targets);
  const float scale = 1.0F / 3;
  const double loss = cross_entropy.Loss(scale);
  double expected_loss = 0;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const SoftmaxPart& part = cross_entropy.parts()[r];
    const SoftmaxRow& softmax = cross_entropy.softmax()[r];
    EXPECT_EQ(softmax.factor, static_cast<double>(scale) / part.sum);
    EXPECT_EQ(softmax.max, part.max);
    EXPECT_EQ(softmax.scale, scale);
    EXPECT_EQ(part.target_logit, blocks[0][r * 1000 + static_cast<std::size_t>(targets[r])]);
    expected_loss +=
        std::log(part.sum) + static_cast<double>(part.max) - static_cast<double>(part.target_logit);
  }
  EXPECT_DOUBLE_EQ(loss, expected_loss);
}

// A rank computes its blocks alone, and whoever has the numbers of all blocks has the loss.
TEST_P(CrossEntropyTest, ABlockDoesNotDependOnOthers) {
  const std::int64_t rows = 4, vocab = 700, block_columns = 256;
  auto targets = RandomTokens(rows, vocab, 1);
  targets[1] = kIgnoredTarget;
  std::vector<Floats> blocks = Cut(Random(rows * vocab, 2, 3), vocab, block_columns);
  const std::vector<Floats> alone = blocks;
  BlockedCrossEntropy<float> whole = Over(*backend_, blocks, targets);
  whole.Loss(0.5F);
  whole.Gradient();
  for (std::size_t b = alone.size(); b-- > 0;) {
    Floats logits = alone[b];
    const auto columns = static_cast<std::int64_t>(logits.size() / targets.size());
    const auto first = static_cast<std::int64_t>(b) * block_columns;
    std::vector<SoftmaxPart> parts(targets.size());
    Run(SoftmaxBlock{.logits = logits.data(),
                     .targets = targets.data(),
                     .parts = parts.data(),
                     .rows = rows,
                     .columns = columns,
                     .first = first});
    EXPECT_EQ(std::memcmp(parts.data(), whole.parts().data() + b * targets.size(),
                          parts.size() * sizeof(SoftmaxPart)),
              0)
        << "block " << b;
    Run(CrossEntropyGradient{.logits = logits.data(),
                             .targets = targets.data(),
                             .parts = parts.data(),
                             .softmax = whole.softmax().data(),
                             .rows = rows,
                             .columns = columns,
                             .first = first});
    EXPECT_EQ(logits, blocks[b]) << "block " << b;
  }
}

TEST_P(CrossEntropyTest, SurvivesLargeLogitsAndReportsNan) {
  const std::vector<std::int32_t> targets = {1};
  for (const std::int64_t block_columns : {3, 2, 1}) {
    std::vector<Floats> blocks = Cut({1e4F, -1e4F, 0}, 3, block_columns);
    BlockedCrossEntropy<float> cross_entropy = Over(*backend_, blocks, targets);
    EXPECT_DOUBLE_EQ(cross_entropy.Loss(1), 2e4);
    cross_entropy.Gradient();
    ExpectNear(Joined(blocks, 1), {1, -1, 0}, 1e-37, "d_logits");
    blocks = Cut({0, 1, kNan}, 3, block_columns);
    EXPECT_TRUE(std::isnan(Over(*backend_, blocks, targets).Loss(1)));
  }
}

class OptimizerTest : public OpTest {};

TEST_P(OptimizerTest, AdamwAgreesWithDoubleOverSteps) {
  const std::int64_t count = 37;
  for (const double weight_decay : {0.0, 0.1}) {
    Floats p = Random(count, 1), m(count, 0), v(count, 0);
    const Floats p0 = p;
    Doubles pd = ToDoubles(p), md(count, 0), vd(count, 0);
    for (std::int64_t step = 1; step <= 10; ++step) {
      const double rate = 1e-3 * static_cast<double>(step), scale = 0.7;
      const Floats g = Random(count, 100 + static_cast<unsigned>(step), 1e-3F);
      const UpdatedTensor tensors[] = {{.parameter = p.data(),
                                        .gradient = g.data(),
                                        .m = m.data(),
                                        .v = v.data(),
                                        .count = count,
                                        .weight_decay = weight_decay}};
      Run(AdamwUpdate{
          .tensors = tensors, .step = step, .learning_rate = rate, .gradient_scale = scale});
      for (std::size_t i = 0; i < pd.size(); ++i) {
        const double gd = scale * g[i];
        md[i] = 0.9 * md[i] + 0.1 * gd;
        vd[i] = 0.95 * vd[i] + 0.05 * gd * gd;
        pd[i] *= 1 - rate * weight_decay;
        const double m_hat = md[i] / (1 - std::pow(0.9, step)),
                     v_hat = vd[i] / (1 - std::pow(0.95, step));
        pd[i] -= rate * m_hat / (std::sqrt(v_hat) + 1e-8);
      }
    }
    // The tolerance covers ten roundings of a parameter, and relative errors of the updates, whose
    // sizes add up to 0.055.
    ExpectNear(
        p, pd, [&](std::size_t i) { return 10 * kEpsilon * (std::abs(p0[i]) + 1); }, "parameter");
    ExpectNear(
        m, md, [&](std::size_t) { return 30 * kEpsilon * 1e-3; }, "m");
    ExpectNear(
        v, vd, [&](std::size_t i) { return 40 * kEpsilon * vd[i]; }, "v");
  }
}

TEST_P(OptimizerTest, AdamwAtARateOfZeroLeavesEveryBit) {
  Floats p = {-0.0F, 0.0F, 1.5F, -1e-40F, -0.0F};
  const Floats g = {-1, -1, -1, -1, 1}, before = p;
  Floats m(p.size(), 0), v(p.size(), 0);
  const UpdatedTensor tensors[] = {{.parameter = p.data(),
                                    .gradient = g.data(),
                                    .m = m.data(),
                                    .v = v.data(),
                                    .count = static_cast<std::int64_t>(p.size()),
                                    .weight_decay = 0.1}};
  Run(AdamwUpdate{.tensors = tensors, .step = 1, .learning_rate = 0});
  EXPECT_EQ(std::memcmp(p.data(), before.data(), p.size() * sizeof(float)), 0);
  EXPECT_NE(m[0], 0);

  Floats copy(p.size(), 7);
  const UpdatedTensor copied[] = {{.parameter = copy.data(),
                                   .previous = p.data(),
                                   .gradient = g.data(),
                                   .m = m.data(),
                                   .v = v.data(),
                                   .count = static_cast<std::int64_t>(p.size()),
                                   .learning_rate_scale = 0,
                                   .weight_decay = 0.1}};
  Run(AdamwUpdate{.tensors = copied, .step = 1, .learning_rate = 1});
  EXPECT_EQ(std::memcmp(copy.data(), before.data(), p.size() * sizeof(float)), 0);
}

TEST_P(OptimizerTest, AdamwLeavesThePreviousParameterAlone) {
  const std::int64_t count = 37;
  const Floats previous = Random(count, 1), g = Random(count, 2);
  Floats in_place = previous, elsewhere(count, 0), m(count, 0), v(count, 0), m2 = m, v2 = v;
  const UpdatedTensor tensors[] = {{.parameter = in_place.data(),
                                    .gradient = g.data(),
                                    .m = m.data(),
                                    .v = v.data(),
                                    .count = count},
                                   {.parameter = elsewhere.data(),
                                    .previous = previous.data(),
                                    .gradient = g.data(),
                                    .m = m2.data(),
                                    .v = v2.data(),
                                    .count = count}};
  Run(AdamwUpdate{.tensors = tensors, .learning_rate = 0.1});
  EXPECT_EQ(elsewhere, in_place);
  EXPECT_EQ(previous, Random(count, 1));
}

TEST_P(OptimizerTest, ForeseesTheParameterThatItMakesAndLeavesMoments) {
  constexpr std::int64_t kCount = 1003;
  for (const int optimizer : {0, 1, 2}) {
    const Floats previous = Random(kCount, 1), g = Random(kCount, 2), before(kCount, 0.5F);
    Floats foreseen(kCount, 0), made(kCount, 0), m = before, v = before;
    const auto run = [&](Floats& parameter, bool foresees) {
      const UpdatedTensor tensors[] = {{.parameter = parameter.data(),
                                        .previous = previous.data(),
                                        .gradient = g.data(),
                                        .m = m.data(),
                                        .v = v.data(),
                                        .count = kCount,
                                        .weight_decay = 0.1}};
      if (optimizer == 0)
        Run(AdamwUpdate{.tensors = tensors, .learning_rate = 0.1, .foresees = foresees});
      if (optimizer == 1)
        Run(LionUpdate{.tensors = tensors, .learning_rate = 0.1, .foresees = foresees});
      if (optimizer == 2) {
        Run(SgdUpdate{.tensors = tensors,
                      .learning_rate = 0.1,
                      .momentum = 0.5,
                      .nesterov = true,
                      .foresees = foresees});
      }
    };
    run(foreseen, true);
    EXPECT_EQ(m, before);
    EXPECT_EQ(v, before);
    run(made, false);
    EXPECT_EQ(foreseen, made) << optimizer;
    EXPECT_NE(m, before);
  }
}

// A rate of zero leaves the parameter alone, and a moment goes on.
TEST_P(OptimizerTest, LionAndSgdAtARateOfZeroLeaveEveryBit) {
  const Floats before = {-0.0F, 0.0F, 1.5F, -1e-40F}, g = {-1, 2, -1, 1};
  const auto count = static_cast<std::int64_t>(before.size());
  for (const bool lion : {true, false}) {
    Floats p = before, copy(before.size(), 7), m(before.size(), 0), m2 = m;
    const UpdatedTensor tensors[] = {{.parameter = p.data(),
                                      .gradient = g.data(),
                                      .m = m.data(),
                                      .count = count,
                                      .learning_rate_scale = 0,
                                      .weight_decay = 0.1},
                                     {.parameter = copy.data(),
                                      .previous = before.data(),
                                      .gradient = g.data(),
                                      .m = m2.data(),
                                      .count = count,
                                      .learning_rate_scale = 0,
                                      .weight_decay = 0.1}};
    if (lion) {
      Run(LionUpdate{.tensors = tensors, .learning_rate = 1});
    } else {
      Run(SgdUpdate{.tensors = tensors, .learning_rate = 1, .momentum = 0.5});
    }
    EXPECT_EQ(std::memcmp(p.data(), before.data(), p.size() * sizeof(float)), 0) << lion;
    EXPECT_EQ(std::memcmp(copy.data(), before.data(), p.size() * sizeof(float)), 0) << lion;
    EXPECT_NE(m[0], 0) << lion;
    EXPECT_EQ(m2, m) << lion;
  }
}

// A gradient that is not a number must not pass as a sign.
TEST_P(OptimizerTest, LionPassesOnNan) {
  Floats p = {1, 1}, m = {0, 0};
  const Floats g = {kNan, 0};
  const UpdatedTensor tensors[] = {
      {.parameter = p.data(), .gradient = g.data(), .m = m.data(), .count = 2}};
  Run(LionUpdate{.tensors = tensors, .learning_rate = 0.1});
  EXPECT_TRUE(std::isnan(p[0]));
  EXPECT_EQ(p[1], 1);
}

// What is left in the end are the plain updates, moved on by the last one.
TEST_P(OptimizerTest, ErrorsAreFedBack) {
  for (const std::int64_t count : {0, 1, 100, 4097}) {
    const auto size = static_cast<std::size_t>(count);
    Floats weights = Random(count, 1), last(size, 0);
    std::vector<double> plain(weights.begin(), weights.end()), moved(size, 0);
    for (int step = 0; step < 3; ++step) {
      const Floats before = weights, update = Random(count, 1);
      for (std::size_t i = 0; i < size; ++i) {
        weights[i] += update[i];
        plain[i] += static_cast<double>(weights[i]) - before[i];
        moved[i] = static_cast<double>(weights[i]) - before[i];
      }
      Run(FeedBackError{.parameter = weights.data(),
                        .previous = before.data(),
                        .last_update = last.data(),
                        .count = count,
                        .coefficient = 0.75F});
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT_NEAR(last[i], moved[i], 1e-6) << count;
        EXPECT_NEAR(weights[i], plain[i] + 0.75 * moved[i], 1e-5) << count;
      }
    }
  }
  EXPECT_EQ(backend_->Run(FeedBackError{.count = 1}).message(), "FeedBackError.parameter is null");
}

TEST_P(OptimizerTest, LeavesParametersRoundedWhereTheyAreRead) {
  constexpr std::int64_t kCount = 37;
  Floats p = Random(kCount, 1), other = p, m(kCount, 0), v(kCount, 0);
  const Floats g = Random(kCount, 2);
  Bf16s rounded(kCount, Bf16{0x7fc0});
  const UpdatedTensor tensors[] = {{.parameter = other.data(),
                                    .gradient = g.data(),
                                    .m = m.data(),
                                    .v = v.data(),
                                    .count = kCount},
                                   {.parameter = p.data(),
                                    .gradient = g.data(),
                                    .m = m.data(),
                                    .v = v.data(),
                                    .rounded = rounded.data(),
                                    .count = kCount}};
  const auto expect_rounded = [&](const char* update) {
    for (std::size_t i = 0; i < p.size(); ++i)
      EXPECT_EQ(rounded[i].bits, Nearest(p[i]).bits) << update << " " << i;
  };
  Run(AdamwUpdate{.tensors = tensors, .learning_rate = 0.1});
  expect_rounded("adamw");
  Run(LionUpdate{.tensors = tensors, .learning_rate = 0.1});
  expect_rounded("lion");
  Run(SgdUpdate{.tensors = tensors, .learning_rate = 0.1, .momentum = 0.5});
  expect_rounded("sgd");
}

TEST_P(OptimizerTest, NamesTheMomentThatIsMissing) {
  Floats p = {1}, m = {0};
  const Floats g = {1};
  const UpdatedTensor without[] = {{.parameter = p.data(), .gradient = g.data(), .count = 1}};
  const UpdatedTensor with_one[] = {
      {.parameter = p.data(), .gradient = g.data(), .m = m.data(), .count = 1}};
  EXPECT_EQ(backend_->Run(LionUpdate{.tensors = without}).message(), "LionUpdate.m is null");
  EXPECT_EQ(backend_->Run(SgdUpdate{.tensors = without, .momentum = 0.5}).message(),
            "SgdUpdate.m is null");
  EXPECT_EQ(backend_->Run(AdamwUpdate{.tensors = with_one}).message(), "AdamwUpdate.v is null");
  Run(SgdUpdate{.tensors = without});
}

TEST_P(OptimizerTest, SumOfSquaresIsExactInDouble) {
  for (const std::int64_t count : {0, 1, 100, 4096, 4097, 100003}) {
    const Floats x = Random(count, 1);
    double expected = 0, sum = -1;
    for (const float value : x) expected += static_cast<double>(value) * value;
    Run(SumOfSquares{.input = x.data(), .result = &sum, .count = count});
    EXPECT_NEAR(sum, expected, 1e-13 * expected) << count;
  }
}

TEST_P(OptimizerTest, BlocksOfSquaresAddUpToTheSum) {
  for (const std::int64_t count : {1, 4096, 4097, 100003}) {
    const Floats x = Random(count, 1);
    double whole = -1, sum = 0;
    std::vector<double> blocks(static_cast<std::size_t>((count + 4095) / 4096), -1);
    Run(SumOfSquares{.input = x.data(), .result = &whole, .count = count});
    Run(SumOfSquares{.input = x.data(), .count = count, .block_sums = blocks.data()});
    for (const double block : blocks) sum += block;
    EXPECT_EQ(sum, whole) << count;
    // A block is the same wherever the input begins.
    if (count <= 8192) continue;
    double second = -1;
    Run(SumOfSquares{.input = x.data() + 4096, .count = 4096, .block_sums = &second});
    EXPECT_EQ(second, blocks[1]);
  }
}

TEST_P(OptimizerTest, FillCopyAndAddReachEveryElement) {
  for (const std::int64_t count : {0, 1, 33, 40001}) {
    const Floats a = Random(count, 1), b = Random(count, 2);
    Floats filled = Unset(count), copied = Unset(count), sum = a;
    Run(Fill{.output = filled.data(), .value = 2.5F, .count = count});
    Run(Copy{.input = a.data(), .output = copied.data(), .count = count});
    Run(Add{.a = sum.data(), .b = b.data(), .output = sum.data(), .count = count});
    EXPECT_EQ(filled, Floats(static_cast<std::size_t>(count), 2.5F));
    EXPECT_EQ(copied, a);
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], a[i] + b[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ElementwiseTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, CrossEntropyTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, OptimizerTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
