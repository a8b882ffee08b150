// SPDX-License-Identifier: Apache-2.0
// For tests: groups of ranks on threads, what they sum, and what passes between them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

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

template <class T>
std::vector<T> SumInRankOrder(int size, std::size_t count) {
  std::vector<T> sum = Values<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> values = Values<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

// Cuts values into one part for each rank. The parts differ in length: the second one is empty, the
// last one longest.
template <class T>
std::vector<std::span<T>> Cut(std::span<T> values, int size) {
  std::vector<std::span<T>> parts;
  for (int i = 0; i < size; ++i) {
    const std::size_t shorter = i == 1 ? 0 : values.size() / static_cast<std::size_t>(size + 1);
    const std::size_t count = i + 1 == size ? values.size() : shorter;
    parts.push_back(values.first(count));
    values = values.subspan(count);
  }
  return parts;
}

// Holds `count` terms of a rank as Collective::Terms has them. Term i of rank r is what rank
// count * r + i would hold in a sum of one term each.
struct OfTerms {
  OfTerms(int rank, int count, std::size_t size) : size(size) {
    constexpr std::size_t kBetween = 3;
    terms = {.count = count, .stride = size + kBetween};
    memory.resize(static_cast<std::size_t>(count) * terms.stride);
    for (int i = 0; i < count; ++i)
      std::ranges::copy(Values<float>(count * rank + i, size), terms.Of(memory.data(), i));
  }
  std::span<float> data() { return std::span(memory).first(size); }

  const std::size_t size;
  Collective::Terms terms;
  std::vector<float> memory;
};

// Records what the ranks opened and sent.
struct Traffic {
  absl::Mutex mutex;
  std::set<std::pair<int, int>> links;  // the lower rank first
  std::map<std::string, int> channels;  // that were opened to send, by name
  std::atomic<std::int64_t> messages{0}, bytes{0};
};

class CountingSend final : public SendChannel {
 public:
  CountingSend(std::unique_ptr<SendChannel> channel, Traffic& traffic)
      : channel_(std::move(channel)), traffic_(traffic) {}
  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    ++traffic_.messages;
    traffic_.bytes += static_cast<std::int64_t>(data.size());
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
      ++traffic_.channels[name];
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

// A rank waits no longer for one that does not come: a test fails before it is given up.
inline constexpr absl::Duration kGroupPatience = absl::Minutes(1);

// Runs `body(collective, index)` on every rank of a group. options: only large_group and
// slice_bytes are used.
template <class Body>
void OnEveryRank(int size, Traffic& traffic, const Body& body,
                 const CollectiveOptions& options = {}) {
  testing::InprocHub hub;
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(Rank(10 + i));
  std::vector<std::thread> threads;
  for (int index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      CountingTransport transport(hub.Connect({.rank = ranks[index],
                                               .num_ranks = size,
                                               .connect_timeout = kGroupPatience,
                                               .operation_timeout = kGroupPatience}),
                                  ranks[index], traffic);
      auto collective = CreateCollective(&transport, {.name = "dp",
                                                      .ranks = ranks,
                                                      .index = index,
                                                      .large_group = options.large_group,
                                                      .slice_bytes = options.slice_bytes});
      ASSERT_TRUE(collective.ok()) << collective.status();
      body(**collective, index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace takt::transport
