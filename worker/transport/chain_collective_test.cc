// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/chain_collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "worker/transport/channel_collective.h"
#include "worker/transport/group_testing.h"

namespace takt::transport {
namespace {

// Runs `body(collective, index)` on every rank of a group that only sums.
template <class Body>
void OnChain(int size, Traffic& traffic, const Body& body) {
  OnEveryRank(size, traffic, body, {.sums_only = true});
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

constexpr int kSmallest = static_cast<int>(kMostDirectRanks) + 1;  // that are a chain

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
  constexpr int kSize = static_cast<int>(kMostDirectRanks);
  Traffic traffic;
  OnChain(kSize, traffic, [&](Collective& collective, int) {
    std::array<double, 1> data = {1};
    EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<double>(data)).ok());
    EXPECT_EQ(data[0], kSize);
  });
  EXPECT_EQ(traffic.links.size(), kSize * (kSize - 1u) / 2);
}

TEST(ChainCollective, PassesNoBytes) {
  Traffic traffic;
  OnChain(kSmallest, traffic, [](Collective& collective, int) {
    std::array<std::byte, 1> data = {};
    EXPECT_EQ(collective.Broadcast(StepId(1), 0, data).code(), absl::StatusCode::kUnimplemented);
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
