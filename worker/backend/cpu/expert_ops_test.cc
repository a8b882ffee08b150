// SPDX-License-Identifier: Apache-2.0
// Tests the ops of a mixture of experts against plain loops in double.
#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "common/layout/packed_matrix.h"
#include "worker/backend/cpu/expert_testing.h"

namespace takt::backend::testing {
namespace {

Doubles Softmax(const Doubles& logits) {
  const double max = *std::ranges::max_element(logits);
  Doubles shares;
  for (const double x : logits) shares.push_back(std::exp(x - max));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

Doubles Scores(const Doubles& logits, bool sigmoid) {
  if (!sigmoid) return Softmax(logits);
  Doubles scores;
  for (const double x : logits) scores.push_back(1 / (1 + std::exp(-x)));
  return scores;
}

// Returns what is added to the sum of scores before they are divided by it.
double Least(bool sigmoid) { return sigmoid ? kLeastScoreSum : 0; }

Doubles RowOf(const Doubles& matrix, std::int64_t row, std::int64_t columns) {
  return {matrix.begin() + row * columns, matrix.begin() + (row + 1) * columns};
}

// Returns the weights of the given choices.
Doubles Weights(const MixtureSizes& s, const Doubles& logits,
                const std::vector<std::int32_t>& choices, bool normalised, bool sigmoid = false) {
  Doubles weights;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const Doubles scores = Scores(RowOf(logits, t, s.experts), sigmoid);
    double sum = Least(sigmoid);
    for (std::int64_t j = 0; j < s.chosen; ++j) sum += scores[choices[t * s.chosen + j]];
    for (std::int64_t j = 0; j < s.chosen; ++j)
      weights.push_back(scores[choices[t * s.chosen + j]] / (normalised ? sum : 1));
  }
  return weights;
}

// Returns the auxiliary losses of all sequences, added up.
double AuxiliaryLoss(const MixtureSizes& s, const Doubles& logits,
                     const std::vector<std::int32_t>& choices, bool sigmoid = false) {
  double loss = 0;
  for (std::int64_t first = 0; first < s.tokens; first += s.context) {
    for (std::int64_t e = 0; e < s.experts; ++e) {
      double pairs = 0, mean = 0;
      for (std::int64_t t = first; t < first + s.context; ++t) {
        const Doubles scores = Scores(RowOf(logits, t, s.experts), sigmoid);
        const double sum = std::accumulate(scores.begin(), scores.end(), Least(sigmoid));
        mean += scores[e] / sum / static_cast<double>(s.context);
        for (std::int64_t j = 0; j < s.chosen; ++j) pairs += choices[t * s.chosen + j] == e ? 1 : 0;
      }
      loss +=
          static_cast<double>(s.experts) * mean * pairs / static_cast<double>(s.chosen * s.context);
    }
  }
  return loss;
}

class ExpertOps : public OpTest {};

TEST_P(ExpertOps, RouterChoosesTheLargestLogitsAndSortsRowsByExpertThenToken) {
  for (const MixtureSizes& s : kMixtures) {
    for (const bool normalised : {false, true}) {
      const Routing routing(*backend_, s, normalised);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const auto chosen = std::span(routing.choices).subspan(t * s.chosen, s.chosen);
        EXPECT_TRUE(std::ranges::is_sorted(chosen));
        const auto logits = std::span(routing.logits).subspan(t * s.experts, s.experts);
        float least = std::numeric_limits<float>::infinity();
        for (const std::int32_t e : chosen) least = std::min(least, logits[e]);
        EXPECT_EQ(std::ranges::count_if(logits, [&](float x) { return x >= least; }), s.chosen);
      }
      EXPECT_EQ(routing.offsets.front(), 0);
      EXPECT_EQ(routing.offsets.back(), routing.count());
      for (std::int64_t row = 0; row < routing.count(); ++row) {
        const std::int64_t expert = routing.ExpertOf(row);
        EXPECT_GE(row, routing.offsets[expert]);
        EXPECT_LT(row, routing.offsets[expert + 1]);
        if (row > routing.offsets[expert]) {
          EXPECT_LT(routing.pairs[row - 1], routing.pairs[row]);
        }
      }
      ExpectNear(routing.weights,
                 Weights(s, ToDoubles(routing.logits), routing.choices, normalised), 2 * kEpsilon,
                 "weights");
    }
  }
}

TEST_P(ExpertOps, SigmoidScoresAreChosenWithTheBiasAndWeighedWithoutIt) {
  for (const MixtureSizes& s : kMixtures) {
    for (const bool normalised : {false, true}) {
      const Routing routing(*backend_, s, normalised, /*sigmoid=*/true);
      const Doubles logits = ToDoubles(routing.logits);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        Doubles sums = Scores(RowOf(logits, t, s.experts), /*sigmoid=*/true);
        for (std::size_t e = 0; e < sums.size(); ++e) sums[e] += routing.bias[e];
        double least = std::numeric_limits<double>::infinity();
        for (const std::int32_t e : std::span(routing.choices).subspan(t * s.chosen, s.chosen))
          least = std::min(least, sums[e]);
        EXPECT_EQ(std::ranges::count_if(sums, [&](double x) { return x >= least; }), s.chosen);
      }
      ExpectNear(routing.weights, Weights(s, logits, routing.choices, normalised, true),
                 2 * kEpsilon, "weights");
    }
  }
}

TEST_P(ExpertOps, BiasesMoveTowardsExpertsWithFewerRows) {
  const std::vector<std::int32_t> offsets = {0, 1, 3, 4, 4}, pairs = {0, 1, 2, 3};
  const ExpertRows rows = {offsets.data(), pairs.data(), 2, 4, 2};
  Floats counts = Unset(4);
  for (const bool accumulate : {false, true})
    Run(AddExpertRows{.rows = rows, .sums = counts.data(), .accumulate = accumulate});
  EXPECT_EQ(counts, (Floats{2, 4, 2, 0}));
  const Floats previous = {1, 1, 1, 1};
  Floats bias = Unset(4);
  Run(BalanceExperts{.previous = previous.data(),
                     .counts = counts.data(),
                     .bias = bias.data(),
                     .count = 4,
                     .mean = 2,
                     .rate = 0.25F});
  EXPECT_EQ(bias, (Floats{1, 0.75F, 1, 1.25F}));
}

TEST_P(ExpertOps, RouterTakesTheLowerNumberOfEqualLogits) {
  Floats logits = {1, 1, 1, 1, 0, 2, 2, 2};
  std::vector<std::int32_t> choices(4), offsets(5), pairs(4);
  Floats weights(4);
  Run(RouteTokens{.rows = {offsets.data(), pairs.data(), 2, 4, 2},
                  .logits = logits.data(),
                  .choices = choices.data(),
                  .weights = weights.data(),
                  .normalised = true});
  EXPECT_EQ(choices, (std::vector<std::int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(offsets, (std::vector<std::int32_t>{0, 1, 3, 4, 4}));
  EXPECT_EQ(pairs, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(weights, Floats(4, 0.5F));
  std::vector<std::int32_t> counts(4, -1);
  Run(CountExpertRows{.rows = {offsets.data(), pairs.data(), 2, 4, 2}, .counts = counts.data()});
  EXPECT_EQ(counts, (std::vector<std::int32_t>{1, 2, 1, 0}));
}

TEST_P(ExpertOps, RouterGradientAgreesWithFiniteDifferences) {
  for (const MixtureSizes& s : kMixtures) {
    for (int way = 0; way < 8; ++way) {
      const bool normalised = way % 2 == 1, sigmoid = way / 2 % 2 == 1;
      const double auxiliary = way < 4 ? 0 : 0.3;
      const Routing routing(*backend_, s, normalised, sigmoid);
      Floats d_weights = Random(routing.count(), 2), d_logits = routing.logits;
      Run(RouteTokensBackward{.rows = routing.Rows(),
                              .logits = d_logits.data(),
                              .choices = routing.choices.data(),
                              .d_weights = d_weights.data(),
                              .d_logits = d_logits.data(),
                              .context = s.context,
                              .normalised = normalised,
                              .sigmoid = sigmoid,
                              .auxiliary_scale = auxiliary});
      // The last output is the auxiliary loss, whose weight is its scale.
      Floats weights = d_weights;
      weights.push_back(static_cast<float>(auxiliary));
      const std::size_t stride = s.tokens > 100 ? 97 : 1;
      const Doubles expected = FiniteDifferences(
          [&](const Doubles& logits) {
            Doubles y = Weights(s, logits, routing.choices, normalised, sigmoid);
            y.push_back(way < 4 ? 0 : AuxiliaryLoss(s, logits, routing.choices, sigmoid));
            return y;
          },
          ToDoubles(routing.logits), weights, stride);
      ExpectNearWhereKnown(d_logits, expected, 1e-6, "d_logits");
    }
  }
}

TEST_P(ExpertOps, SwigluMultipliesByTheWeightOfEachRow) {
  for (const MixtureSizes& s : kMixtures) {
    const Routing routing(*backend_, s);
    for (const std::int64_t columns : {1, 12, 33}) {
      const std::int64_t count = routing.count() * columns;
      const Floats gate = Random(count, 3), up = Random(count, 4), d_output = Random(count, 5);
      Floats output = Unset(count), d_gate = gate, d_up = up, d_weights = Unset(routing.count());
      Run(ExpertSwigluForward{.rows = routing.Rows(),
                              .gate = gate.data(),
                              .up = up.data(),
                              .weights = routing.weights.data(),
                              .output = output.data(),
                              .columns = columns});
      Run(ExpertSwigluBackward{.rows = routing.Rows(),
                               .gate = d_gate.data(),
                               .up = d_up.data(),
                               .weights = routing.weights.data(),
                               .d_output = d_output.data(),
                               .d_gate = d_gate.data(),
                               .d_up = d_up.data(),
                               .d_weights = d_weights.data(),
                               .columns = columns});
      Doubles y(output.size()), dg(y.size()), du(y.size()), dw(d_weights.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / columns;
        const double weight = routing.weights[routing.pairs[row]], x = gate[i], d = d_output[i];
        const double sigmoid = 1 / (1 + std::exp(-x));
        y[i] = weight * x * sigmoid * up[i];
        dg[i] = weight * d * up[i] * sigmoid * (1 + x * (1 - sigmoid));
        du[i] = weight * d * x * sigmoid;
        dw[routing.pairs[row]] += d * x * sigmoid * up[i];
      }
      const double allowed = SumTolerance(1, 16);
      ExpectNear(output, y, allowed, "output");
      ExpectNear(d_gate, dg, 4 * allowed, "d_gate");
      ExpectNear(d_up, du, 4 * allowed, "d_up");
      ExpectNear(d_weights, dw, SumTolerance(columns, 32), "d_weights");
    }
  }
}

// The matrix of an expert, and the factors and the result of its products.
struct Product {
  std::int64_t n, k;
};
constexpr Product kProducts[] = {{1, 1}, {12, 20}, {33, 17}};

double At(const Floats& matrix, std::int64_t row, std::int64_t column, std::int64_t columns) {
  return matrix[row * columns + column];
}

TEST_P(ExpertOps, ProductsReadTokensOrAddToThem) {
  for (const MixtureSizes& s : kMixtures) {
    const Routing routing(*backend_, s);
    for (const auto [n, k] : kProducts) {
      for (const bool to_tokens : {false, true}) {
        for (const bool transposed : {false, true}) {
          const std::int64_t a_rows = to_tokens ? routing.count() : s.tokens;
          const std::int64_t c_rows = to_tokens ? s.tokens : routing.count();
          const Floats a = Random(a_rows * k, 6), before = Random(c_rows * n, 7);
          Floats c = to_tokens ? before : Unset(c_rows * n);
          Doubles expected = to_tokens ? ToDoubles(before) : Doubles(c.size());
          std::vector<Floats> b;
          std::vector<ExpertMatrix> matrices;
          for (std::int64_t e = 0; e < s.experts; ++e)
            b.push_back(Random(n * k, static_cast<unsigned>(10 + e)));
          for (const Floats& matrix : b) matrices.push_back({.b = matrix.data()});
          Run(ExpertMatmul{.rows = routing.Rows(),
                           .matrices = matrices,
                           .a = a.data(),
                           .c = c.data(),
                           .b_transposed = transposed,
                           .to_tokens = to_tokens,
                           .n = n,
                           .k = k});
          for (std::int64_t r = 0; r < routing.count(); ++r) {
            const std::int64_t token = routing.TokenOf(r);
            const Floats& matrix = b[routing.ExpertOf(r)];
            for (std::int64_t j = 0; j < n; ++j) {
              double& out = expected[(to_tokens ? token : r) * n + j];
              for (std::int64_t i = 0; i < k; ++i) {
                out += At(a, to_tokens ? r : token, i, k) *
                       (transposed ? At(matrix, j, i, k) : At(matrix, i, j, n));
              }
            }
          }
          ExpectNear(c, expected, SumTolerance(k * s.chosen, 16), "c");
        }
      }
    }
  }
}

TEST_P(ExpertOps, WeightGradientsSumTheRowsOfAnExpert) {
  for (const MixtureSizes& s : kMixtures) {
    const Routing routing(*backend_, s);
    for (const auto [n, m] : kProducts) {
      for (const bool a_by_token : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const Floats a = Random((a_by_token ? s.tokens : routing.count()) * m, 6);
          const Floats b = Random((a_by_token ? routing.count() : s.tokens) * n, 7);
          std::vector<Floats> c;
          std::vector<Doubles> expected;
          std::vector<ExpertGradient> gradients;
          for (std::int64_t e = 0; e < s.experts; ++e) {
            const Floats before = Random(m * n, static_cast<unsigned>(10 + e));
            c.push_back(accumulate ? before : Unset(m * n));
            expected.push_back(accumulate ? ToDoubles(before) : Doubles(before.size()));
          }
          for (Floats& gradient : c) gradients.push_back({.c = gradient.data()});
          Run(ExpertMatmulTransposed{.rows = routing.Rows(),
                                     .gradients = gradients,
                                     .a = a.data(),
                                     .b = b.data(),
                                     .a_by_token = a_by_token,
                                     .accumulate = accumulate,
                                     .m = m,
                                     .n = n});
          for (std::int64_t r = 0; r < routing.count(); ++r) {
            const std::int64_t token = routing.TokenOf(r);
            Doubles& sums = expected[routing.ExpertOf(r)];
            for (std::int64_t i = 0; i < m; ++i) {
              for (std::int64_t j = 0; j < n; ++j) {
                sums[i * n + j] +=
                    At(a, a_by_token ? token : r, i, m) * At(b, a_by_token ? r : token, j, n);
              }
            }
          }
          for (std::size_t e = 0; e < c.size(); ++e)
            ExpectNear(c[e], expected[e], SumTolerance(s.tokens, 32), "c");
        }
      }
    }
  }
}

// In bf16 a product has the bits of the ordinary one of the same rows, as long as these are few.
TEST_P(ExpertOps, ProductsInBf16RoundTheirFactors) {
  const MixtureSizes s{.tokens = 300, .context = 100, .experts = 3, .chosen = 2};
  constexpr std::int64_t kN = 40, kK = 24;
  const Routing routing(*backend_, s);
  const Floats a = Random(s.tokens * kK, 6), b = Random(kN * kK, 7);
  const Doubles rounded_a = ToDoubles(Widened(NearestOf(a)));
  const Doubles rounded_b = ToDoubles(Widened(NearestOf(b)));
  Bf16s packed(static_cast<std::size_t>(layout::PackedElements(kK, kN)));
  Run(PackBf16{.b = b.data(), .transposed = true, .packed = packed.data(), .k = kK, .n = kN});
  Floats c = Unset(routing.count() * kN);
  const std::vector<ExpertMatrix> matrices(3, {.packed = packed.data()});
  Run(ExpertMatmul{.rows = routing.Rows(),
                   .matrices = matrices,
                   .a = a.data(),
                   .c = c.data(),
                   .n = kN,
                   .k = kK});
  Doubles expected(c.size());
  for (std::int64_t r = 0; r < routing.count(); ++r) {
    for (std::int64_t j = 0; j < kN; ++j) {
      for (std::int64_t i = 0; i < kK; ++i) {
        expected[r * kN + j] += rounded_a[routing.TokenOf(r) * kK + i] * rounded_b[j * kK + i];
      }
    }
  }
  ExpectNear(c, expected, SumTolerance(kK, 16), "c");

  const Floats d = Random(routing.count() * kN, 9);
  const Doubles rounded_d = ToDoubles(Widened(NearestOf(d)));
  std::vector<Floats> c_of(3, Unset(kN * kK));
  std::vector<ExpertGradient> gradients;
  for (Floats& gradient : c_of) gradients.push_back({.c = gradient.data()});
  Run(ExpertMatmulTransposed{.rows = routing.Rows(),
                             .gradients = gradients,
                             .a = d.data(),
                             .b = a.data(),
                             .in_bf16 = true,
                             .m = kN,
                             .n = kK});
  Doubles expected_gradient(c_of[0].size());
  for (std::int64_t r = 0; r < routing.offsets[1]; ++r) {
    for (std::int64_t j = 0; j < kN; ++j) {
      for (std::int64_t i = 0; i < kK; ++i)
        expected_gradient[j * kK + i] +=
            rounded_d[r * kN + j] * rounded_a[routing.TokenOf(r) * kK + i];
    }
  }
  ExpectNear(c_of[0], expected_gradient, SumTolerance(s.tokens, 32), "gradient");
}

TEST_P(ExpertOps, HaveTheSameBitsForAnyNumberOfThreads) {
  const MixtureSizes s{.tokens = 600, .context = 300, .experts = 4, .chosen = 2};
  constexpr std::int64_t kN = 300, kK = 200;
  const auto run = [&](int threads) {
    const auto backend = CreateOrDie({.threads = threads});
    const Routing routing(*backend, s);
    const Floats a = Random(s.tokens * kK, 6), b = Random(kN * kK, 7);
    Floats rows = Unset(routing.count() * kN), tokens = Random(s.tokens * kK, 8), all;
    const std::vector<ExpertMatrix> matrices(4, {.b = b.data()});
    const Op products[] = {ExpertMatmul{.rows = routing.Rows(),
                                        .matrices = matrices,
                                        .a = a.data(),
                                        .c = rows.data(),
                                        .b_transposed = true,
                                        .n = kN,
                                        .k = kK},
                           ExpertMatmul{.rows = routing.Rows(),
                                        .matrices = matrices,
                                        .a = rows.data(),
                                        .c = tokens.data(),
                                        .to_tokens = true,
                                        .n = kK,
                                        .k = kN}};
    for (const Op& op : products) EXPECT_EQ(backend->Run(op).message(), "");
    std::vector<Floats> c(4, Unset(kN * kK));
    std::vector<ExpertGradient> gradients;
    for (Floats& each : c) gradients.push_back({.c = each.data()});
    EXPECT_EQ(backend
                  ->Run(ExpertMatmulTransposed{.rows = routing.Rows(),
                                               .gradients = gradients,
                                               .a = rows.data(),
                                               .b = a.data(),
                                               .m = kN,
                                               .n = kK})
                  .message(),
              "");
    const Floats& gradient = c[1];
    for (const Floats& part : {routing.weights, rows, tokens, gradient})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const Floats expected = run(1);
  for (const float value : expected) ASSERT_FALSE(std::isnan(value));
  for (const int threads : {2, 3}) EXPECT_TRUE(run(threads) == expected) << threads;
}

TEST_P(ExpertOps, AreRefusedIfTheyBreakARule) {
  const auto message = [&](const Op& op) { return std::string(backend_->Run(op).message()); };
  EXPECT_EQ(message(RouteTokens{.rows = {.tokens = 1, .experts = 2, .chosen = 3}}),
            "RouteTokens: chosen must be at most experts");
  EXPECT_EQ(message(RouteTokens{.rows = {.tokens = 1, .experts = 2, .chosen = 1}, .sigmoid = true}),
            "RouteTokens: sigmoid needs a bias, and nothing else has one");
  EXPECT_EQ(
      message(RouteTokensBackward{.rows = {.tokens = 5, .experts = 2, .chosen = 1}, .context = 2}),
      "RouteTokensBackward: tokens must be divisible by context");
  const ExpertRows rows{.tokens = 1, .experts = 2, .chosen = 1};
  const float x = 0;
  const Bf16 y{};
  float c = 0;
  const std::vector<ExpertMatrix> none(2), f32(2, {.b = &x}), bf16(2, {.packed = &y});
  const std::vector<ExpertGradient> gradients(2, {.c = &c});
  EXPECT_EQ(message(ExpertMatmul{.rows = rows}), "ExpertMatmul: it needs a matrix for each expert");
  const std::vector<std::vector<ExpertMatrix>> cases = {
      none, {bf16[0], f32[0]}, {f32[0], none[0]}, {f32[0], bf16[0]}};
  for (const std::vector<ExpertMatrix>& mixed : cases) {
    EXPECT_EQ(message(ExpertMatmul{.rows = rows, .matrices = mixed}),
              "ExpertMatmul: matrices must have either b or packed, and all the same");
  }
  EXPECT_EQ(message(ExpertMatmul{.rows = rows, .matrices = f32, .a = &y}),
            "ExpertMatmul: a in bf16 needs packed matrices");
  EXPECT_EQ(message(ExpertMatmul{.rows = rows, .matrices = bf16, .a = &y}),
            "ExpertMatmul: a by token must be in f32");
  EXPECT_EQ(message(ExpertMatmulTransposed{.rows = rows}),
            "ExpertMatmulTransposed: it needs a matrix for each expert");
  const std::vector<ExpertGradient> null(2);
  EXPECT_EQ(message(ExpertMatmulTransposed{.rows = rows, .gradients = null}),
            "ExpertMatmulTransposed.c is null");
  EXPECT_EQ(message(ExpertMatmulTransposed{
                .rows = rows, .gradients = gradients, .a = &y, .b = &x, .a_by_token = true}),
            "ExpertMatmulTransposed: a factor by token must be in f32");
  EXPECT_EQ(message(ExpertMatmulTransposed{.rows = rows, .gradients = gradients, .a = &y, .b = &x}),
            "ExpertMatmulTransposed: factors in bf16 need in_bf16");
}

INSTANTIATE_TEST_SUITE_P(Backends, ExpertOps, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
