// SPDX-License-Identifier: Apache-2.0
// Tests the kernels of a mixture of experts in the emulator, as kernels_test does for others.
#include <numeric>
#include <span>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

using testing::Bf16s;

struct Mixture {
  std::int64_t tokens, context, experts, chosen;
};
// There are experts without rows, more experts than lanes of a warp and than a launch has, and
// experts with more rows than a tile has.
constexpr Mixture kMixtures[] = {
    {1, 1, 1, 1}, {6, 3, 40, 3}, {10, 5, 130, 2}, {150, 50, 2, 1}, {66, 33, 5, 2}};

std::string Name(const char* op, const Mixture& m) {
  return std::string(op) + " of " + std::to_string(m.tokens) + " tokens, " +
         std::to_string(m.experts) + " experts";
}

// The rows of a mixture, as the backend's router makes them.
struct Routed {
  Routed(Backend& backend, Tensors& t, const Mixture& of, bool sigmoid = false,
         bool normalised = true)
      : mixture(of),
        logits(t.Random(of.tokens * of.experts, 2)),
        weights(t.Unset(of.tokens * of.chosen)),
        choices(static_cast<std::size_t>(of.tokens * of.chosen), -1),
        pairs(choices.size(), -1),
        offsets(static_cast<std::size_t>(of.experts + 1), -1) {
    RunOp(backend, RouteTokens{.rows = {.offsets = offsets.data(),
                                        .pairs = pairs.data(),
                                        .tokens = of.tokens,
                                        .experts = of.experts,
                                        .chosen = of.chosen},
                               .logits = logits,
                               .choices = choices.data(),
                               .weights = weights,
                               .bias = sigmoid ? t.Random(of.experts) : nullptr,
                               .normalised = normalised,
                               .sigmoid = sigmoid});
  }

  ExpertRows Rows() const {
    return {.offsets = offsets.data(),
            .pairs = pairs.data(),
            .tokens = mixture.tokens,
            .experts = mixture.experts,
            .chosen = mixture.chosen};
  }
  std::int64_t count() const { return mixture.tokens * mixture.chosen; }

  const Mixture mixture;
  float *logits, *weights;
  std::vector<std::int32_t> choices, pairs, offsets;
};

void AddIntegers(std::span<const std::int32_t> integers, Result& result) {
  for (const std::int32_t integer : integers) result.Add(static_cast<double>(integer));
}

TEST(CudaExperts, Routers) {
  for (const Mixture& m : kMixtures) {
    for (int way = 0; way < 8; ++way) {
      const bool sigmoid = way % 2 == 1, normalised = way / 2 % 2 == 1;
      Check(Name("router", m), kFew, [&](Backend& backend, Tensors& t) {
        const Routed routed(backend, t, m, sigmoid, normalised);
        Result result;
        for (const std::vector<std::int32_t>* integers :
             {&routed.choices, &routed.pairs, &routed.offsets})
          AddIntegers(*integers, result);
        result.Add(routed.weights, routed.count());
        RunOp(backend, RouteTokensBackward{.rows = routed.Rows(),
                                           .logits = routed.logits,
                                           .choices = routed.choices.data(),
                                           .d_weights = t.Random(routed.count()),
                                           .d_logits = routed.logits,
                                           .context = m.context,
                                           .normalised = normalised,
                                           .sigmoid = sigmoid,
                                           .auxiliary_scale = way < 4 ? 0 : 0.25});
        result.Add(routed.logits, m.tokens * m.experts);
        return result;
      });
    }
  }
}

// Of equal logits that of the lower expert is chosen, and logits that are not numbers come last.
TEST(CudaExperts, RoutersChooseAmongOddLogits) {
  const float nan = testing::kNan;
  for (const bool sigmoid : {false, true}) {
    const auto backend = CreateEmulatedBackend(ThreadOrder::kShuffled);
    Floats logits = {1, 1, 1, 1, nan, nan, 0, nan}, weights(4);
    const Floats bias(4, 0.5F);
    std::vector<std::int32_t> choices(4), offsets(5), pairs(4);
    RunOp(*backend, RouteTokens{.rows = {offsets.data(), pairs.data(), 2, 4, 2},
                                .logits = logits.data(),
                                .choices = choices.data(),
                                .weights = weights.data(),
                                .bias = sigmoid ? bias.data() : nullptr,
                                .sigmoid = sigmoid});
    EXPECT_EQ(choices, (std::vector<std::int32_t>{0, 1, 0, 2}));
    EXPECT_EQ(offsets, (std::vector<std::int32_t>{0, 2, 3, 4, 4}));
    EXPECT_EQ(pairs, (std::vector<std::int32_t>{0, 2, 1, 3}));
  }
}

TEST(CudaExperts, CountsAndBiases) {
  for (const Mixture& m : kMixtures) {
    Check(Name("counts", m), kExact, [&](Backend& backend, Tensors& t) {
      const Routed routed(backend, t, m);
      std::vector<std::int32_t> counts(static_cast<std::size_t>(m.experts), -1);
      RunOp(backend, CountExpertRows{.rows = routed.Rows(), .counts = counts.data()});
      float *sums = t.Unset(m.experts), *bias = t.Random(m.experts);
      for (const bool accumulate : {false, true})
        RunOp(backend,
              AddExpertRows{.rows = routed.Rows(), .sums = sums, .accumulate = accumulate});
      RunOp(backend, BalanceExperts{.previous = bias,
                                    .counts = sums,
                                    .bias = bias,
                                    .count = m.experts,
                                    .mean = 4,
                                    .rate = 0.25F});
      RunOp(backend, BalanceExperts{});
      Result result;
      AddIntegers(counts, result);
      result.Add(sums, m.experts);
      result.Add(bias, m.experts);
      return result;
    });
  }
}

TEST(CudaExperts, Swiglu) {
  for (const Mixture& m : kMixtures) {
    for (const std::int64_t columns : {1, 12, 131, 516}) {
      if (columns > 12 && m.tokens > 66) continue;
      // The gradient of a weight is a sum over the columns.
      const double tolerance = columns > 131 ? 4 * kFew : kFew;
      CheckBothOutputs(
          Name("swiglu", m),
          [&](Backend& backend, Tensors& t, bool bf16) {
            const Routed routed(backend, t, m);
            const std::int64_t count = routed.count() * columns;
            float *gate = t.Random(count, 3), *up = t.Random(count);
            float* d_weights = t.Unset(routed.count());
            Output output;
            if (bf16) {
              output = t.UnsetBf16(count);
            } else {
              output = t.Unset(count);
            }
            RunOp(backend, ExpertSwigluForward{.rows = routed.Rows(),
                                               .gate = gate,
                                               .up = up,
                                               .weights = routed.weights,
                                               .output = output,
                                               .columns = columns});
            RunOp(backend, ExpertSwigluBackward{.rows = routed.Rows(),
                                                .gate = gate,
                                                .up = up,
                                                .weights = routed.weights,
                                                .d_output = t.Random(count, 0.25F),
                                                .d_gate = gate,
                                                .d_up = up,
                                                .d_weights = d_weights,
                                                .columns = columns});
            Result result;
            result.Add(output, count);
            result.Add(gate, count);
            result.Add(up, count);
            result.Add(d_weights, routed.count());
            return result;
          },
          tolerance);
    }
  }
}

TEST(CudaExperts, RowsAndTokens) {
  for (const Mixture& m : kMixtures) {
    for (const std::int64_t columns : {1, 12, 131, 516}) {
      if (columns > 12 && m.tokens > 66) continue;
      Check(Name("rows", m), kExact, [&](Backend& backend, Tensors& t) {
        const Routed routed(backend, t, m);
        const std::int64_t rows = routed.count() * columns;
        float *packed = t.Unset(rows), *sums = t.Random(m.tokens * columns);
        float *by_row = t.Unset(routed.count()), *by_pair = t.Unset(routed.count());
        RunOp(backend, PackTokens{.rows = routed.Rows(),
                                  .by_token = t.Random(m.tokens * columns),
                                  .by_row = packed,
                                  .columns = columns});
        RunOp(backend, AddRowsToTokens{.rows = routed.Rows(),
                                       .choices = routed.choices.data(),
                                       .by_row = t.Random(rows),
                                       .by_token = sums,
                                       .columns = columns});
        RunOp(backend,
              PackPairs{
                  .rows = routed.Rows(), .by_pair = t.Random(routed.count()), .by_row = by_row});
        RunOp(backend, UnpackPairs{.rows = routed.Rows(), .by_row = by_row, .by_pair = by_pair});
        Result result;
        result.Add(packed, rows);
        result.Add(sums, m.tokens * columns);
        result.Add(by_row, routed.count());
        result.Add(by_pair, routed.count());
        return result;
      });
    }
  }
}

// A block finds the rows of so many pairs at a time, which are fewer than a token may have.
TEST(CudaExperts, AddsAllRowsOfATokenWithManyExperts) {
  const Mixture m{.tokens = 3, .context = 3, .experts = 300, .chosen = 290};
  Check(Name("many rows", m), kExact, [&](Backend& backend, Tensors& t) {
    const Routed routed(backend, t, m);
    float* const sums = t.Random(m.tokens * 5);
    RunOp(backend, AddRowsToTokens{.rows = routed.Rows(),
                                   .choices = routed.choices.data(),
                                   .by_row = t.Random(routed.count() * 5),
                                   .by_token = sums,
                                   .columns = 5});
    Result result;
    result.Add(sums, m.tokens * 5);
    return result;
  });
}

struct Sides {
  std::int64_t n, k;
};
// Sizes of one tile and of several, whose rows are read in groups of eight numbers, of four, or one
// by one.
constexpr Sides kSides[] = {{3, 5}, {72, 136}, {68, 12}, {65, 67}};

TEST(CudaExperts, Products) {
  for (const Mixture& m : kMixtures) {
    for (const Sides s : kSides) {
      for (int way = 0; way < 6; ++way) {
        const bool to_tokens = way % 2 == 1, transposed = way / 2 == 1, bf16 = way / 2 == 2;
        if (m.experts > 5 && s.n > 3) continue;
        Check(Name("product", m) + ", way " + std::to_string(way), 16 * kFew,
              [&](Backend& backend, Tensors& t) {
                const Routed routed(backend, t, m);
                const std::int64_t a_rows = to_tokens ? routed.count() : m.tokens;
                const std::int64_t c_rows = to_tokens ? m.tokens : routed.count();
                const float *b = t.Random(s.n * s.k, 0.25F), *other = t.Random(s.n * s.k, 0.25F);
                Bf16s packed(static_cast<std::size_t>(layout::PackedElements(s.k, s.n)));
                RunOp(backend, PackBf16{.b = b, .packed = packed.data(), .k = s.k, .n = s.n});
                std::vector<ExpertMatrix> matrices;
                for (std::int64_t e = 0; e < m.experts; ++e) {
                  if (bf16) {
                    matrices.push_back({.packed = packed.data()});
                  } else {
                    matrices.push_back({.b = e % 2 == 0 ? b : other});
                  }
                }
                ExpertMatmul op{.rows = routed.Rows(),
                                .matrices = matrices,
                                .a = t.Random(a_rows * s.k),
                                .c = to_tokens ? t.Random(c_rows * s.n) : t.Unset(c_rows * s.n),
                                .b_transposed = transposed,
                                .to_tokens = to_tokens,
                                .n = s.n,
                                .k = s.k};
                if (bf16 && to_tokens) op.a = t.RandomBf16(a_rows * s.k);
                RunOp(backend, op);
                Result result;
                result.Add(op.c, c_rows * s.n);
                return result;
              });
      }
    }
  }
}

TEST(CudaExperts, GradientsOfMatrices) {
  for (const Mixture& m : kMixtures) {
    for (const Sides s : kSides) {
      for (int way = 0; way < 6; ++way) {
        const bool a_by_token = way % 2 == 1, in_bf16 = way >= 2, rounded = way >= 4;
        if (m.experts > 5 && s.n > 3) continue;
        Check(Name("gradient", m) + ", way " + std::to_string(way), 16 * kFew,
              [&](Backend& backend, Tensors& t) {
                const Routed routed(backend, t, m);
                const auto factor = [&](bool by_token, std::int64_t columns) -> Operand {
                  const std::int64_t count = (by_token ? m.tokens : routed.count()) * columns;
                  if (rounded && !by_token) return t.RandomBf16(count);
                  return t.Random(count);
                };
                ExpertMatmulTransposed op{.rows = routed.Rows(),
                                          .a = factor(a_by_token, s.n),
                                          .b = factor(!a_by_token, s.k),
                                          .a_by_token = a_by_token,
                                          .in_bf16 = in_bf16,
                                          .accumulate = way % 4 == 1 || way == 4,
                                          .m = s.n,
                                          .n = s.k};
                std::vector<ExpertGradient> gradients;
                for (std::int64_t e = 0; e < m.experts; ++e)
                  gradients.push_back({.c = t.Random(s.n * s.k)});
                op.gradients = gradients;
                RunOp(backend, op);
                Result result;
                for (const ExpertGradient& gradient : gradients) result.Add(gradient.c, s.n * s.k);
                return result;
              });
      }
    }
  }
}

// A row has the same bits whichever other rows its expert has.
TEST(CudaExperts, RowsDoNotDependOnOneAnother) {
  constexpr std::int64_t kTokens = 100, kN = 20, kK = 72;
  const Floats a = testing::Random(kTokens * kK, 1), b = testing::Random(kN * kK, 2);
  const auto backend = CreateEmulatedBackend(ThreadOrder::kForward);
  Bf16s packed(static_cast<std::size_t>(layout::PackedElements(kK, kN)));
  RunOp(*backend, PackBf16{.b = b.data(), .packed = packed.data(), .k = kK, .n = kN});
  std::vector<std::int32_t> pairs(kTokens);
  std::iota(pairs.begin(), pairs.end(), 0);
  // Returns the results of tokens [first, first + count), which one expert has.
  const auto multiply = [&](std::int64_t first, std::int64_t count, bool bf16) {
    const std::vector<std::int32_t> offsets = {0, static_cast<std::int32_t>(count)};
    Floats c = testing::Unset(count * kN);
    const ExpertMatrix matrix = {.b = bf16 ? nullptr : b.data(),
                                 .packed = bf16 ? packed.data() : nullptr};
    RunOp(*backend, ExpertMatmul{.rows = {offsets.data(), pairs.data(), count, 1, 1},
                                 .matrices = std::span(&matrix, 1),
                                 .a = a.data() + first * kK,
                                 .c = c.data(),
                                 .n = kN,
                                 .k = kK});
    return c;
  };
  for (const bool bf16 : {false, true}) {
    const Floats all = multiply(0, kTokens, bf16);
    for (const std::int64_t token : {0, 63, 64, 77}) {
      const Floats own(all.begin() + token * kN, all.begin() + (token + 1) * kN);
      EXPECT_TRUE(SameBits(multiply(token, 1, bf16), own)) << token;
    }
  }
}

}  // namespace
}  // namespace takt::backend::cuda
