// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_exchange.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/group_testing.h"

namespace takt::train {
namespace {

using ::testing::ElementsAre;
using Floats = std::vector<float>;
using Range = ExpertArrivals::Run;

constexpr int kExperts = 4;

// Has the tokens of one rank, and what its router chose. Loads are uneven, nobody chooses expert 1,
// and ranks have different numbers of tokens.
struct Source {
  explicit Source(int rank) : tokens(5 + 2 * rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    for (float& logit : logits) logit = static_cast<float>(random() % 1000);
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
      logits[t * kExperts + 1] = -1;
    for (float& x : input) x = static_cast<float>(random() % 2001) / 1000 - 1;
  }

  absl::Status Route(backend::Backend& backend) {
    Floats weights(pairs.size());
    std::vector<std::int32_t> choices(pairs.size());
    return backend.Run(backend::RouteTokens{.rows = {.offsets = offsets.data(),
                                                     .pairs = pairs.data(),
                                                     .tokens = tokens,
                                                     .experts = kExperts,
                                                     .chosen = kChosen},
                                            .logits = logits.data(),
                                            .choices = choices.data(),
                                            .weights = weights.data()});
  }
  backend::ExpertRows Rows() const {
    return {.offsets = offsets.data(),
            .pairs = pairs.data(),
            .tokens = tokens,
            .experts = kExperts,
            .chosen = kChosen};
  }
  // Returns the input of each row, [rows,C].
  Floats Packed() const {
    Floats packed;
    for (const std::int32_t pair : pairs) {
      const auto token = input.begin() + pair / kChosen * kColumns;
      packed.insert(packed.end(), token, token + kColumns);
    }
    return packed;
  }

  static constexpr std::int64_t kChosen = 2, kColumns = 3;
  const std::int64_t tokens;
  Floats logits = Floats(static_cast<std::size_t>(tokens * kExperts));
  Floats input = Floats(static_cast<std::size_t>(tokens * kColumns));
  std::vector<std::int32_t> offsets = std::vector<std::int32_t>(kExperts + 1);
  std::vector<std::int32_t> pairs =
      std::vector<std::int32_t>(static_cast<std::size_t>(tokens * kChosen));
};

absl::StatusOr<std::unique_ptr<ExpertExchange>> ExchangeOf(transport::Collective& group,
                                                           backend::Backend& backend) {
  return ExpertExchange::Create({.group = &group, .backend = &backend, .experts = kExperts});
}

absl::StatusOr<ExpertArrivals> Announce(ExpertExchange& exchange, transport::Collective& group,
                                        const Source& source) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(group.size() * kExperts));
  RETURN_IF_ERROR(exchange.Announce(StepId(1), source.Rows(), counts));
  return ExpertArrivals(counts, group.size(), group.index(), {});
}

TEST(ExpertArrivals, AreSortedBySourceThenExpert) {
  // Three ranks have two experts each. Rank 2 has no row for those of rank 1.
  const std::vector<std::int32_t> counts = {1, 0, 2, 3, 0, 4,   // of rank 0
                                            5, 6, 0, 7, 1, 1,   // of rank 1
                                            2, 2, 0, 0, 9, 0};  // of rank 2
  const std::vector<std::int32_t> numbers(12);  // as many as the longest run has, and more
  std::vector<std::int32_t> offsets(9);
  const ExpertArrivals arrivals(counts, 3, 1,
                                {.offsets = offsets.data(), .row_numbers = numbers.data()});
  EXPECT_EQ(arrivals.SentTo(0), (Range{0, 11}));
  EXPECT_EQ(arrivals.SentTo(1), (Range{11, 7}));
  EXPECT_EQ(arrivals.SentTo(2), (Range{18, 2}));
  EXPECT_EQ(arrivals.num_sent(), 20);
  EXPECT_EQ(arrivals.ReceivedFrom(0), (Range{0, 5}));
  EXPECT_EQ(arrivals.ReceivedFrom(1), (Range{5, 7}));
  EXPECT_EQ(arrivals.ReceivedFrom(2), (Range{12, 0}));
  EXPECT_EQ(arrivals.num_received(), 12);
  EXPECT_THAT(arrivals.offsets(), ElementsAre(0, 2, 5, 0, 0, 7, 0, 0, 0));
  const backend::ExpertRows rows = arrivals.RowsFrom(0);
  EXPECT_EQ(rows.offsets, offsets.data());
  EXPECT_EQ(arrivals.RowsFrom(1).offsets, offsets.data() + 3);
  EXPECT_EQ(rows.pairs, numbers.data());
  EXPECT_EQ(rows.tokens, 5);
  EXPECT_EQ(rows.experts, 2);
  EXPECT_EQ(rows.chosen, 1);
}

TEST(ExpertExchange, CombineBringsBackWhatDispatchSent) {
  for (const int ranks : {1, 2, 4}) {
    ForAllRanks(ranks, [&](transport::Collective& group) -> absl::Status {
      ASSIGN_OR_RETURN(const auto backend, backend::CreateCpuBackend({}));
      Source source(group.index());
      RETURN_IF_ERROR(source.Route(*backend));
      ASSIGN_OR_RETURN(const std::unique_ptr<ExpertExchange> exchange, ExchangeOf(group, *backend));
      ASSIGN_OR_RETURN(const ExpertArrivals arrivals, Announce(*exchange, group, source));
      const Floats packed = source.Packed();
      EXPECT_EQ(arrivals.num_sent(), std::ssize(source.pairs));
      Floats arrived(static_cast<std::size_t>(arrivals.num_received() * Source::kColumns), -7);
      RETURN_IF_ERROR(exchange->Dispatch(StepId(1), arrivals, packed, arrived));
      EXPECT_EQ(std::ranges::count(arrived, -7.0F), 0);
      Floats back(packed.size(), -7);
      RETURN_IF_ERROR(exchange->Combine(StepId(1), arrivals, arrived, back));
      EXPECT_EQ(back, packed) << "rank " << group.index() << " of " << ranks;
      return absl::OkStatus();
    });
  }
}

// Each source's rows are multiplied apart, so products have the shapes and bits that they have
// where every rank holds all experts.
TEST(ExpertExchange, ProductsOfArrivalsHaveTheBitsOfThoseAtHome) {
  constexpr std::int64_t kOut = 37;
  std::mt19937 random(9);
  Floats weights(kExperts * kOut * Source::kColumns);
  for (float& weight : weights) weight = static_cast<float>(random() % 2001) / 1000 - 1;
  for (const int ranks : {1, 2, 4}) {
    ForAllRanks(ranks, [&](transport::Collective& group) -> absl::Status {
      ASSIGN_OR_RETURN(const auto backend, backend::CreateCpuBackend({}));
      const auto multiply = [&](const backend::ExpertRows& rows, std::int64_t first_expert,
                                const float* a, float* c) -> absl::Status {
        std::vector<backend::ExpertMatrix> matrices;
        for (std::int64_t e = first_expert; e < first_expert + rows.experts; ++e)
          matrices.push_back({.b = weights.data() + e * kOut * Source::kColumns});
        return backend->Run(backend::ExpertMatmul{.rows = rows,
                                                  .matrices = matrices,
                                                  .a = a,
                                                  .c = c,
                                                  .b_transposed = true,
                                                  .n = kOut,
                                                  .k = Source::kColumns});
      };
      Source source(group.index());
      RETURN_IF_ERROR(source.Route(*backend));
      Floats at_home(source.pairs.size() * kOut);
      RETURN_IF_ERROR(multiply(source.Rows(), 0, source.input.data(), at_home.data()));

      ASSIGN_OR_RETURN(const std::unique_ptr<ExpertExchange> exchange, ExchangeOf(group, *backend));
      ASSIGN_OR_RETURN(const ExpertArrivals arrivals, Announce(*exchange, group, source));
      const auto received = static_cast<std::size_t>(arrivals.num_received());
      Floats arrived(received * Source::kColumns), products(received * kOut);
      std::vector<std::int32_t> numbers(received);
      std::iota(numbers.begin(), numbers.end(), 0);
      RETURN_IF_ERROR(exchange->Dispatch(StepId(1), arrivals, source.Packed(), arrived));
      for (int rank = 0; rank < ranks; ++rank) {
        const auto [first, count] = arrivals.ReceivedFrom(rank);
        if (count == 0) continue;
        backend::ExpertRows rows = arrivals.RowsFrom(rank);
        rows.offsets = arrivals.offsets().data() + rank * (kExperts / ranks + 1);
        rows.pairs = numbers.data();
        RETURN_IF_ERROR(multiply(rows, group.index() * kExperts / ranks,
                                 arrived.data() + first * Source::kColumns,
                                 products.data() + first * kOut));
      }
      Floats back(at_home.size());
      RETURN_IF_ERROR(exchange->Combine(StepId(1), arrivals, products, back));
      EXPECT_EQ(back, at_home) << "rank " << group.index() << " of " << ranks;
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace takt::train
