// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/chain_collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/testing/inproc_hub.h"
#include "worker/transport/channel_collective.h"

namespace takt::transport {
namespace {

// Returns what every rank holds before the sum. The magnitudes differ, so the order of additions
// shows in the bits.
template <class T>
std::vector<T> Values(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + static_cast<int>(count)));
  std::uniform_real_distribution<double> exponent(-12, 12), sign(-1, 1);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(sign(random) * std::exp2(exponent(random)));
  return values;
}

// Records what the ranks opened and sent.
struct Traffic {
  absl::Mutex mutex;
  std::set<std::pair<int, int>> links;  // the lower rank first
  std::atomic<std::int64_t> messages{0};
};

class CountingSend final : public SendChannel {
 public:
  CountingSend(std::unique_ptr<SendChannel> channel, Traffic& traffic)
      : channel_(std::move(channel)), traffic_(traffic) {}
  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    ++traffic_.messages;
    return channel_->Send(tag, data);
  }

 private:
  const std::unique_ptr<SendChannel> channel_;
  Traffic& traffic_;
};

class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> transport, Rank self, Traffic& traffic)
      : transport_(std::move(transport)), self_(self), traffic_(traffic) {}
  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    {
      absl::MutexLock lock(&traffic_.mutex);
      traffic_.links.insert(std::minmax({self_.value(), peer.value()}));
    }
    auto channel = transport_->OpenSend(peer, name, max_bytes);
    if (!channel.ok()) return channel.status();
    return std::make_unique<CountingSend>(*std::move(channel), traffic_);
  }
  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    return transport_->OpenRecv(peer, name, max_bytes);
  }
  void Abort() override { transport_->Abort(); }

 private:
  const std::unique_ptr<Transport> transport_;
  const Rank self_;
  Traffic& traffic_;
};

// Runs `body(collective, index)` on every rank of a group that only sums.
template <class Body>
void OnEveryRank(int size, Traffic& traffic, const Body& body) {
  testing::InprocHub hub;
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(Rank(10 + i));
  std::vector<std::thread> threads;
  for (int index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      CountingTransport transport(hub.Connect({.rank = ranks[index], .num_ranks = size}),
                                  ranks[index], traffic);
      auto collective = CreateCollective(
          &transport, {.name = "dp", .ranks = ranks, .index = index, .sums_only = true});
      ASSERT_TRUE(collective.ok()) << collective.status();
      body(**collective, index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <class T>
void ExpectSumsInRankOrder(int size, std::size_t count) {
  SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " values");
  std::vector<T> expected = Values<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> values = Values<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) expected[i] += values[i];
  }
  Traffic traffic;
  OnEveryRank(size, traffic, [&](Collective& collective, int index) {
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

TEST(ChainCollective, ConnectsEachRankWithItsNeighboursAlone) {
  constexpr int kSize = 40;
  Traffic traffic;
  OnEveryRank(kSize, traffic, [](Collective& collective, int) {
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
  OnEveryRank(kSize, traffic, [&](Collective& collective, int) {
    std::array<double, 1> data = {1};
    EXPECT_TRUE(collective.AllReduceSum(StepId(1), std::span<double>(data)).ok());
    EXPECT_EQ(data[0], kSize);
  });
  EXPECT_EQ(traffic.links.size(), kSize * (kSize - 1u) / 2);
}

TEST(ChainCollective, PassesNoBytes) {
  Traffic traffic;
  OnEveryRank(kSmallest, traffic, [](Collective& collective, int) {
    std::array<std::byte, 1> data = {};
    EXPECT_EQ(collective.Broadcast(StepId(1), 0, data).code(), absl::StatusCode::kUnimplemented);
  });
}

TEST(ChainCollective, RefusesAnotherStep) {
  Traffic traffic;
  OnEveryRank(kSmallest, traffic, [](Collective& collective, int index) {
    std::array<float, 4> data = {};
    const absl::Status status = collective.AllReduceSum(StepId(index), std::span<float>(data));
    // The first rank's message is refused. What the others get depends on which end first.
    if (index == 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    }
  });
}

}  // namespace
}  // namespace takt::transport
