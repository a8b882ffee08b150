// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/chain_collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/direct_ranks.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/group_testing.h"

namespace takt::transport {
namespace {

// Runs `body(collective, index)` on every rank of a group that is a chain if it is large.
template <class Body>
void OnChain(int size, Traffic& traffic, const Body& body) {
  OnEveryRank(size, traffic, body, {.large_group = LargeGroup::kChain});
}

// Does the same with one that is a ring.
template <class Body>
void OnRing(int size, Traffic& traffic, const Body& body) {
  OnEveryRank(size, traffic, body, {.large_group = LargeGroup::kRing});
}

template <class T>
void ExpectSumsInRankOrder(int size, std::size_t count) {
  SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
  const std::vector<T> expected = SumInRankOrder<T>(size, count);
  Traffic traffic;
  OnChain(size, traffic, [&](Collective& collective, int index) {
    EXPECT_EQ(collective.size(), size);
    EXPECT_EQ(collective.index(), index);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<T> data = Values<T>(index, count);
      const absl::Status status = collective.AllReduceSum(StepId(3), std::span<T>(data));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(data)), std::as_bytes(std::span(expected))))
          << "index " << index;
    }
  });
}

constexpr int kSmallest = kMostDirectRanks + 1;  // that are a chain

TEST(ChainCollective, SumsInRankOrderOnEveryRank) {
  for (const int size : {kSmallest, kSmallest + 1, 33}) {
    for (const std::size_t count : {0u, 1u, 8193u}) {
      ExpectSumsInRankOrder<float>(size, count);
      ExpectSumsInRankOrder<double>(size, count);
    }
  }
  // Several slices, the last of which is not full.
  ExpectSumsInRankOrder<float>(kSmallest, 3 * kSliceBytes / sizeof(float) + 5);
}

TEST(ChainCollective, AddsSeveralTermsOfEachRankInOrder) {
  constexpr int kTerms = 3;
  for (const std::size_t count : {1u, 8193u}) {
    const std::vector<float> expected = SumInRankOrder<float>(kSmallest * kTerms, count);
    Traffic traffic;
    OnChain(kSmallest, traffic, [&](Collective& collective, int index) {
      OfTerms values(index, kTerms, count);
      const absl::Status status = collective.AllReduceTerms(StepId(3), values.data(), values.terms);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(values.data()), std::as_bytes(std::span(expected))))
          << "index " << index;
    });
  }
}

TEST(ChainCollective, ConnectsEachRankWithItsNeighboursAlone) {
  constexpr int kSize = 40;
  Traffic traffic;
  OnChain(kSize, traffic, [](Collective& collective, int) {
    std::vector<float> data(2 * kSliceBytes / sizeof(float));
    EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<float>(data)).ok());
  });
  EXPECT_EQ(traffic.links.size(), kSize - 1u);
  for (const auto& [lower, higher] : traffic.links) EXPECT_EQ(higher, lower + 1);
  EXPECT_EQ(traffic.messages, 2 * 2 * (kSize - 1));  // both slices pass each link both ways
}

TEST(ChainCollective, ASmallGroupConnectsEachWithEach) {
  constexpr int kSize = kMostDirectRanks;
  Traffic traffic;
  OnChain(kSize, traffic, [&](Collective& collective, int) {
    std::array<double, 1> data = {1};
    EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<double>(data)).ok());
    EXPECT_EQ(data[0], kSize);
  });
  EXPECT_EQ(traffic.links.size(), kSize * (kSize - 1u) / 2);
}

template <class T>
void ExpectSameBits(std::span<T> actual, std::span<T> expected) {
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(actual), std::as_bytes(expected)));
}

constexpr std::size_t kSeveralSlices = 11 * kSliceBytes / sizeof(float) + 77;

TEST(ChainCollective, EachRankGetsTheSumsOfItsPartInRankOrder) {
  constexpr int kTerms = 2;
  for (const int size : {kSmallest, kSmallest + 1}) {
    for (const std::size_t count : {0u, 1u, 8193u}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
      std::vector<float> sums = SumInRankOrder<float>(size, count);
      std::vector<float> sums_of_terms = SumInRankOrder<float>(size * kTerms, count);
      Traffic traffic;
      OnChain(size, traffic, [&](Collective& collective, int index) {
        std::vector<float> data = Values<float>(index, count);
        const auto parts = Cut(std::span(data), size);
        absl::Status status = collective.ReduceScatterSum(StepId(3), parts);
        ASSERT_TRUE(status.ok()) << status;
        ExpectSameBits(parts[index], Cut(std::span(sums), size)[index]);

        OfTerms values(index, kTerms, count);
        const auto parts_of_terms = Cut(values.data(), size);
        status = collective.ReduceScatterTerms(StepId(3), parts_of_terms, values.terms);
        ASSERT_TRUE(status.ok()) << status;
        ExpectSameBits(parts_of_terms[index], Cut(std::span(sums_of_terms), size)[index]);
      });
    }
  }
}

TEST(ChainCollective, GathersThePartsOfAllRanksOnEachOfARing) {
  for (const int size : {kSmallest, kSmallest + 1}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kSeveralSlices}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
      std::vector<float> expected = Values<float>(99, count);
      Traffic traffic;
      OnRing(size, traffic, [&](Collective& collective, int index) {
        std::vector<float> data(count);
        const auto parts = Cut(std::span(data), size);
        std::ranges::copy(Cut(std::span(expected), size)[index], parts[index].begin());
        const absl::Status status = collective.AllGatherParts(StepId(3), parts);
        ASSERT_TRUE(status.ok()) << status;
        ExpectSameBits(std::span(data), std::span(expected));
      });
    }
  }
}

TEST(ChainCollective, SendsEachPartToTheRoot) {
  std::vector<float> expected = Values<float>(99, kSeveralSlices);
  const auto expected_parts = Cut(std::span(expected), kSmallest);
  for (const int root : {0, 4, kSmallest - 1}) {
    SCOPED_TRACE(root);
    Traffic traffic;
    OnChain(kSmallest, traffic, [&](Collective& collective, int index) {
      std::vector<float> data(index == root ? kSeveralSlices : 0);
      std::vector<std::span<std::byte>> parts;
      if (index == root) {
        const auto places = Cut(std::span(data), kSmallest);
        std::ranges::copy(expected_parts[root], places[root].begin());
        for (const std::span<float> part : places) parts.push_back(std::as_writable_bytes(part));
      }
      const absl::Status status =
          collective.SendTo(StepId(3), root, std::as_bytes(expected_parts[index]), parts);
      ASSERT_TRUE(status.ok()) << status;
      if (index == root) ExpectSameBits(std::span(data), std::span(expected));
    });
  }
}

TEST(ChainCollective, RefusesAPartOfAnotherLength) {
  Traffic traffic;
  OnChain(kSmallest, traffic, [](Collective& collective, int index) {
    std::array<std::byte, 8> mine = {};
    std::array<std::byte, kSmallest* 4> room = {};
    std::vector<std::span<std::byte>> parts;
    for (int i = 0; index == 0 && i < kSmallest; ++i)
      parts.push_back(std::span(room).subspan(static_cast<std::size_t>(4 * i), 4));
    const absl::Status status = collective.SendTo(StepId(3), 0, mine, parts);
    if (index == 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    }
  });
}

// Parts of one slice each, of a group of kSmallest.
struct FullParts {
  std::vector<float> data = std::vector<float>(kSmallest * kSliceBytes / sizeof(float));
  std::vector<std::span<float>> parts;

  FullParts() {
    constexpr std::size_t kPart = kSliceBytes / sizeof(float);
    for (std::size_t i = 0; i < kSmallest; ++i)
      parts.push_back(std::span(data).subspan(i * kPart, kPart));
  }
};

constexpr int kLinks = kSmallest - 1;
constexpr std::int64_t kSlice = kSliceBytes;

TEST(ChainCollective, SendsAllPartsUpEachLinkAndDownThoseOfTheRanksBeforeIt) {
  Traffic traffic;
  OnChain(kSmallest, traffic, [&](Collective& collective, int) {
    FullParts all;
    EXPECT_TRUE(collective.ReduceScatterSum(StepId(1), all.parts).ok());
  });
  EXPECT_EQ(traffic.messages, kLinks * kSmallest + kLinks * kSmallest / 2);
  EXPECT_EQ(traffic.bytes, traffic.messages * kSlice);
}

TEST(ChainCollective, SendsAllPartsButOneOverEachLinkOfARing) {
  Traffic traffic;
  OnRing(kSmallest, traffic, [&](Collective& collective, int) {
    FullParts all;
    EXPECT_TRUE(collective.AllGatherParts(StepId(1), all.parts).ok());
  });
  EXPECT_EQ(traffic.messages, kSmallest * (kSmallest - 1));
  EXPECT_EQ(traffic.bytes, traffic.messages * kSlice);
  EXPECT_EQ(traffic.links.size(), static_cast<std::size_t>(kSmallest));
}

TEST(ChainCollective, SendsToTheRootWhatItsRankAndThoseBehindItHave) {
  constexpr int kRoot = 2;
  Traffic traffic;
  OnChain(kSmallest, traffic, [&](Collective& collective, int index) {
    FullParts all;
    std::vector<std::span<std::byte>> parts;
    for (const std::span<float> part : all.parts) parts.push_back(std::as_writable_bytes(part));
    if (index != kRoot) parts.clear();
    EXPECT_TRUE(collective.SendTo(StepId(1), kRoot, std::as_bytes(all.parts[0]), parts).ok());
  });
  // Parts of ranks 0 and 1 pass 2 and 1 links, those of 3 to 8 pass 1 to 6.
  constexpr int kPassed = 2 + 1 + (1 + 2 + 3 + 4 + 5 + 6);
  EXPECT_EQ(traffic.messages, 2 * kPassed);
  EXPECT_EQ(traffic.bytes, kPassed * (kSlice + 8));
}

TEST(ChainCollective, PassesNoBytes) {
  Traffic traffic;
  OnChain(kSmallest, traffic, [](Collective& collective, int) {
    std::array<std::byte, 1> data = {};
    EXPECT_EQ(collective.Broadcast(StepId(1), 0, data).code(), absl::StatusCode::kUnimplemented);
    FullParts all;
    EXPECT_EQ(collective.AllGatherParts(StepId(1), all.parts).code(),
              absl::StatusCode::kUnimplemented);
  });
}

TEST(ChainCollective, RefusesAnotherStep) {
  Traffic traffic;
  OnChain(kSmallest, traffic, [](Collective& collective, int index) {
    std::array<float, 4> data = {};
    const absl::Status status = collective.AllReduceSum(StepId(index), std::span<float>(data));
    // The first rank's message is refused. That ends the others: what they get depends on which of
    // their neighbours ends first.
    if (index == 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    } else {
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
    }
  });
}

}  // namespace
}  // namespace takt::transport
