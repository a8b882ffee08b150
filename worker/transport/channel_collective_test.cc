// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/channel_collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "worker/transport/group_testing.h"

namespace takt::transport {
namespace {

template <class T>
void ExpectSumsInRankOrder(int size, std::size_t count, std::size_t slice_bytes = kSliceBytes) {
  SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
  const std::vector<T> expected = SumInRankOrder<T>(size, count);
  Traffic traffic;
  OnEveryRank(size, traffic,
              [&](Collective& collective, int index) {
                EXPECT_EQ(collective.size(), size);
                std::vector<T> data = Values<T>(index, count);
                const absl::Status status = collective.AllReduceSum(StepId(3), std::span<T>(data));
                ASSERT_TRUE(status.ok()) << status;
                EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(data)),
                                               std::as_bytes(std::span(expected))))
                    << "index " << index;
              },
              {.slice_bytes = slice_bytes});
}

TEST(Collective, SumsFloatsInRankOrderOnEveryRank) {
  for (int size : {1, 2, 3, 4, 5}) {
    for (std::size_t count : {0u, 1u, 7u, 8192u, 8193u, 300'001u}) {
      ExpectSumsInRankOrder<float>(size, count);
    }
  }
}

TEST(Collective, SumsDoublesInRankOrderOnEveryRank) {
  for (int size : {2, 3, 4}) {
    for (std::size_t count : {1u, 150u, 70'000u}) ExpectSumsInRankOrder<double>(size, count);
  }
}

TEST(Collective, LargeDataTakesSeveralRounds) {
  ExpectSumsInRankOrder<float>(3, 3 * kSliceBytes / sizeof(float) * 2 + 5);
}

TEST(Collective, SumsDoNotDependOnTheSizeOfAMessage) {
  for (const std::size_t slice_bytes : {kDirectBytes, kDirectBytes + 64, 4 * kSliceBytes}) {
    for (const int size : {2, 3}) ExpectSumsInRankOrder<float>(size, 300'001, slice_bytes);
  }
}

TEST(Collective, SendsAsManyMessagesAndBytesAsTheFormulaSays) {
  for (int size : {2, 3, 4}) {
    SCOPED_TRACE(size);
    Traffic small;
    OnEveryRank(size, small, [](Collective& collective, int) {
      std::vector<double> data(100);
      EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<double>(data)).ok());
    });
    EXPECT_EQ(small.messages, size * (size - 1));
    EXPECT_EQ(small.bytes, size * (size - 1) * 800);

    // This takes two full rounds.
    const std::int64_t values = 2 * size * static_cast<std::int64_t>(kSliceBytes / sizeof(float));
    Traffic large;
    OnEveryRank(size, large, [&](Collective& collective, int) {
      std::vector<float> data(values);
      EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<float>(data)).ok());
    });
    EXPECT_EQ(large.messages, size * 2 * 2 * (size - 1));
    EXPECT_EQ(large.bytes, size * (2 * (size - 1) * values * 4 / size));
  }
}

TEST(Collective, EachRankGetsTheSumsOfItsPartInRankOrder) {
  for (const int size : {1, 2, 3, 4, 5}) {
    for (const std::size_t count : {0u, 1u, 9u, 8193u, 300'001u}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
      std::vector<float> sums = SumInRankOrder<float>(size, count);
      const auto expected = Cut(std::span<float>(sums), size);
      Traffic traffic;
      OnEveryRank(size, traffic, [&](Collective& collective, int index) {
        std::vector<float> data = Values<float>(index, count);
        const auto parts = Cut(std::span<float>(data), size);
        const absl::Status status = collective.ReduceScatterSum(StepId(3), parts);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(std::ranges::equal(std::as_bytes(parts[index]), std::as_bytes(expected[index])))
            << "index " << index;
      });
      // Each rank sends what is not its own.
      EXPECT_EQ(traffic.bytes, (size - 1) * static_cast<std::int64_t>(4 * count));
    }
  }
}

TEST(Collective, AddsSeveralTermsOfEachRankInOrder) {
  for (const int size : {1, 2, 3}) {
    for (const int terms : {1, 2, 3}) {
      for (const std::size_t count : {0u, 1u, 9u, 8193u, 300'001u}) {
        SCOPED_TRACE(::testing::Message()
                     << size << " ranks, " << terms << " terms of " << count << " values");
        std::vector<float> sums = SumInRankOrder<float>(size * terms, count);
        const auto expected = Cut(std::span<float>(sums), size);
        Traffic traffic;
        OnEveryRank(size, traffic, [&](Collective& collective, int index) {
          OfTerms whole(index, terms, count), cut(index, terms, count);
          absl::Status status = collective.AllReduceTerms(StepId(3), whole.data(), whole.terms);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(std::ranges::equal(std::as_bytes(whole.data()),
                                         std::as_bytes(std::span<const float>(sums))));
          const auto parts = Cut(cut.data(), size);
          status = collective.ReduceScatterTerms(StepId(3), parts, cut.terms);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(
              std::ranges::equal(std::as_bytes(parts[index]), std::as_bytes(expected[index])));
        });
      }
    }
  }
}

TEST(Collective, AddsTermsOfRanksThatTakeTurnsOneByOne) {
  constexpr int kSize = 4, kTerms = 2, kInTurns = 2;
  constexpr std::size_t kCount = 8193;
  std::vector<float> sums = SumInRankOrder<float>(kSize * kTerms, kCount);
  Traffic traffic;
  OnEveryRank(kSize, traffic, [&](Collective& collective, int index) {
    OfTerms values(index, kTerms, kCount);
    values.terms.in_turns = kInTurns;
    for (int term = 0; term < kTerms; ++term) {
      const int place = index / kInTurns * kInTurns * kTerms + term * kInTurns + index % kInTurns;
      std::ranges::copy(Values<float>(place, kCount), values.terms.Of(values.memory.data(), term));
    }
    const absl::Status status = collective.AllReduceTerms(StepId(3), values.data(), values.terms);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(values.data()),
                                   std::as_bytes(std::span<const float>(sums))));
  });
}

// Returns the sum of leaves [first, first + count) along a binary tree. count: a power of two.
std::vector<float> TreeOfLeaves(int first, int count, std::size_t size) {
  if (count == 1) return Values<float>(first, size);
  std::vector<float> sum = TreeOfLeaves(first, count / 2, size);
  const std::vector<float> right = TreeOfLeaves(first + count / 2, count / 2, size);
  for (std::size_t i = 0; i < size; ++i) sum[i] += right[i];
  return sum;
}

TEST(Collective, ATreeOfLeavesHasTheSameBitsForEveryNumberOfRanks) {
  constexpr int kLeaves = 8;
  for (const std::size_t count : {0u, 1u, 9u, 300'001u}) {
    std::vector<float> sums = TreeOfLeaves(0, kLeaves, count);
    for (const int size : {1, 2, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
      const auto expected = Cut(std::span<float>(sums), size);
      Traffic traffic;
      OnEveryRank(size, traffic, [&](Collective& collective, int index) {
        const int of_rank = kLeaves / size;
        std::vector<float> data = TreeOfLeaves(index * of_rank, of_rank, count);
        const auto parts = Cut(std::span<float>(data), size);
        const absl::Status status = collective.ReduceScatterTree(StepId(3), parts);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(std::ranges::equal(std::as_bytes(parts[index]), std::as_bytes(expected[index])))
            << "index " << index;
      });
    }
  }
}

// A group with no way of its own to add parts. It doubles what it adds.
class TwinGroup final : public Collective {
 public:
  int size() const override { return 2; }
  int index() const override { return 0; }
  absl::Status AllReduceSum(StepId, std::span<float> data) override {
    for (float& value : data) value *= 2;
    return absl::OkStatus();
  }
  absl::Status AllReduceSum(StepId, std::span<double>) override {
    return absl::InternalError("not expected");
  }
};

TEST(Collective, AGroupThatAddsOnlyWholeDataAddsEveryPart) {
  TwinGroup group;
  std::vector<float> data = {1, 2, 3};
  const std::vector<std::span<float>> parts = {std::span(data).first(1),
                                               std::span(data).subspan(1)};
  EXPECT_TRUE(group.ReduceScatterSum(StepId(1), parts).ok());
  EXPECT_EQ(data, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(group.ReduceScatterTree(StepId(1), parts).code(), absl::StatusCode::kUnimplemented);
  const Collective::Terms two{.count = 2, .stride = 3};
  EXPECT_EQ(group.AllReduceTerms(StepId(1), data, two).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(group.ReduceScatterTerms(StepId(1), parts, two).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(Collective, RefusesAnotherStep) {
  Traffic traffic;
  OnEveryRank(2, traffic, [](Collective& collective, int index) {
    std::vector<float> data(4);
    const absl::Status status = collective.AllReduceSum(StepId(index), std::span<float>(data));
    // The lower rank's message is refused. What the lower rank gets depends on whether the other
    // one still sends.
    if (index == 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    }
  });
}

TEST(Tournament, EveryPairMeetsOnce) {
  for (int size = 1; size <= 9; ++size) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < TournamentRounds(size); ++round) {
      for (int index = 0; index < size; ++index) {
        const int peer = TournamentPeer(size, round, index);
        if (peer < 0) continue;
        EXPECT_EQ(TournamentPeer(size, round, peer), index) << size << " " << round;
        if (index < peer) {
          EXPECT_TRUE(met.insert({index, peer}).second);
        }
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(size * (size - 1) / 2)) << size;
  }
}

}  // namespace
}  // namespace takt::transport
