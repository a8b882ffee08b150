// SPDX-License-Identifier: Apache-2.0
// Tests messages and sums between simulated devices, by the fake NCCL.
#include "worker/transport/nccl/nccl_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "worker/transport/nccl/device_sums.h"
#include "worker/transport/nccl/nccl_testing.h"

namespace takt::transport::nccl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Link {
  std::unique_ptr<SendChannel> send;
  std::unique_ptr<RecvChannel> recv;
};

class NcclTransportTest : public ::testing::Test {
 protected:
  void MakeRanks(int num_ranks, TestRank::Options options = {}) {
    options.num_ranks = num_ranks;
    for (int rank = 0; rank < num_ranks; ++rank)
      ranks_.push_back(std::make_unique<TestRank>(world_, rank, options));
  }
  // Ranks end together, as those of a job do.
  ~NcclTransportTest() override {
    std::vector<std::function<void()>> ends;
    for (auto& rank : ranks_) ends.emplace_back([&rank] { rank.reset(); });
    AtOnce(ends);
    EXPECT_THAT(nccl_.misuse(), IsEmpty());
    EXPECT_EQ(nccl_.num_open(), 0);
  }

  TestRank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }

  Link Open(const std::string& name, std::size_t floats, int from = 0, int to = 1) {
    Link link;
    const std::size_t bytes = floats * sizeof(float);
    AtOnce({[&] { link.send = rank(from).transport->OpenSend(Rank(to), name, bytes).value(); },
            [&] { link.recv = rank(to).transport->OpenRecv(Rank(from), name, bytes).value(); }});
    return link;
  }

  FakeNccl nccl_;
  TestWorld world_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

TEST_F(NcclTransportTest, MessagesAreLeftOnStreamsAndArriveInOrder) {
  MakeRanks(2, {.lazy = true});
  constexpr std::size_t kFloats = 1000;
  constexpr int kMessages = 5;
  Link link = Open("F", kFloats);
  ASSERT_NE(link.send->stream(), nullptr);
  ASSERT_NE(link.recv->stream(), nullptr);
  std::vector<backend::Buffer> sent, received;
  for (int m = 0; m < kMessages; ++m) {
    sent.push_back(rank(0).Allocate(kFloats));
    received.push_back(rank(1).Allocate(kFloats));
    rank(0).Write(sent.back(), std::vector<float>(kFloats, static_cast<float>(m)));
  }
  // The host has given all of it before a stream begins, because a receive does not wait for its
  // send.
  for (int m = 0; m < kMessages; ++m)
    ASSERT_TRUE(link.recv->Recv({.microbatch = m}, BytesOf(received[m])).ok());
  for (int m = 0; m < kMessages; ++m)
    ASSERT_TRUE(link.send->Send({.microbatch = m}, BytesOf(sent[m])).ok());
  AtOnce({[&] { EXPECT_TRUE(Finish(*link.send->stream()).ok()); },
          [&] { EXPECT_TRUE(Finish(*link.recv->stream()).ok()); }});
  for (int m = 0; m < kMessages; ++m) {
    EXPECT_EQ(rank(1).Read(received[m]), std::vector<float>(kFloats, static_cast<float>(m)));
  }
  EXPECT_TRUE(rank(0).transport->status().ok());
}

TEST_F(NcclTransportTest, NoChannelIsHeldUpByAnother) {
  MakeRanks(2);
  std::vector<Link> links;
  for (const char* name : {"F", "B"}) {
    links.push_back(Open(name, 4, 0, 1));
    links.push_back(Open(name, 4, 1, 0));
  }
  const backend::Buffer a = rank(0).Allocate(4), b = rank(1).Allocate(4);
  // These receives have no sends yet, on all channels of both ranks.
  const backend::Buffer into[] = {rank(1).Allocate(4), rank(0).Allocate(4), rank(1).Allocate(4),
                                  rank(0).Allocate(4)};
  for (std::size_t i = 0; i < links.size(); ++i)
    ASSERT_TRUE(links[i].recv->Recv({}, BytesOf(into[i])).ok());
  for (const std::size_t i : {3u, 1u, 2u, 0u}) {
    const bool of_rank_0 = i % 2 == 0;
    ASSERT_TRUE(links[i].send->Send({}, BytesOf(of_rank_0 ? a : b)).ok());
    EXPECT_TRUE(Finish(*links[i].send->stream()).ok());
    EXPECT_TRUE(Finish(*links[i].recv->stream()).ok());
  }
}

TEST_F(NcclTransportTest, AMessageLargerThanAgreedIsNotSent) {
  MakeRanks(2);
  Link link = Open("F", 4);
  const backend::Buffer buffer = rank(0).Allocate(8);
  EXPECT_EQ(link.send->Send({}, BytesOf(buffer)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(rank(0).transport->status().ok());
}

// Adds as the host's collective does.
std::vector<float> SumInOrder(const std::vector<std::vector<float>>& values) {
  std::vector<float> sum = values[0];
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[rank][i];
  }
  return sum;
}

TEST_F(NcclTransportTest, SumsHaveTheBitsOfRankOrder) {
  for (const int num_ranks : {2, 3, 5}) {
    ranks_.clear();
    MakeRanks(num_ranks);
    CollectiveOptions group{.name = absl::StrCat("replicas-", num_ranks)};
    for (int r = 0; r < num_ranks; ++r) group.ranks.push_back(Rank(num_ranks - 1 - r));
    // The sizes are fewer than ranks, some, and more than one round.
    const std::size_t more = kTestScratchBytes / sizeof(float) * 5 / 2 + 3;
    const std::vector<std::size_t> sizes = {1, 1000, more};
    std::vector<std::function<void()>> all;
    for (int index = 0; index < num_ranks; ++index) {
      all.emplace_back([&, index] {
        TestRank& mine = rank(num_ranks - 1 - index);
        CollectiveOptions options = group;
        options.index = index;
        const auto sums = mine.transport->OpenSums(options).value();
        EXPECT_EQ(sums->size(), num_ranks);
        for (const std::size_t size : sizes) {
          std::vector<std::vector<float>> values;
          for (int r = 0; r < num_ranks; ++r) {
            std::minstd_rand random(static_cast<unsigned>(r) + 1);
            values.emplace_back(size);
            for (float& value : values.back())
              value = 1.0F / static_cast<float>(random() % 1000 + 1);
          }
          const backend::Buffer buffer = mine.Allocate(size);
          mine.Write(buffer, values[static_cast<std::size_t>(index)]);
          EXPECT_TRUE(sums->AllReduceSum(StepId(1), buffer.float_span().first(size)).ok());
          EXPECT_TRUE(Finish(*sums->stream()).ok());
          EXPECT_EQ(mine.Read(buffer), SumInOrder(values)) << size << " of rank " << index;
        }
        double number = index + 1;
        EXPECT_TRUE(sums->AllReduceSum(StepId(1), std::span<double>(&number, 1)).ok());
        EXPECT_EQ(number, num_ranks * (num_ranks + 1) / 2);
      });
    }
    AtOnce(all);
    std::vector<std::function<void()>> ends;
    for (auto& each : ranks_) ends.emplace_back([&each] { each.reset(); });
    AtOnce(ends);
  }
}

// Adds along a binary tree over ranks. values: of a power of two.
std::vector<float> SumAsTree(std::span<const std::vector<float>> values) {
  if (values.size() == 1) return values[0];
  std::vector<float> sum = SumAsTree(values.first(values.size() / 2));
  const std::vector<float> right = SumAsTree(values.subspan(values.size() / 2));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

TEST_F(NcclTransportTest, PartsAreSummedInEitherOrderAndThenGathered) {
  constexpr int kRanks = 4;
  MakeRanks(kRanks);
  // A part of one round, none, and parts of several rounds.
  const std::vector<std::size_t> sizes = {1000, 0, kTestScratchBytes / sizeof(float) * 5 / 2 + 3,
                                          kTestScratchBytes / sizeof(float)};
  const std::size_t all_floats = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  std::vector<std::vector<float>> values;
  for (int r = 0; r < kRanks; ++r) {
    std::minstd_rand random(static_cast<unsigned>(r) + 1);
    values.emplace_back(all_floats);
    for (float& value : values.back()) value = 1.0F / static_cast<float>(random() % 1000 + 1);
  }
  const std::vector<float> in_order = SumInOrder(values), as_tree = SumAsTree(values);
  ASSERT_NE(in_order, as_tree);
  std::vector<std::function<void()>> all;
  for (int index = 0; index < kRanks; ++index) {
    all.emplace_back([&, index] {
      TestRank& mine = rank(index);
      CollectiveOptions group{.name = "replicas", .index = index};
      for (int r = 0; r < kRanks; ++r) group.ranks.push_back(Rank(r));
      const auto sums = mine.transport->OpenSums(group).value();
      const backend::Buffer buffer = mine.Allocate(all_floats);
      std::vector<std::span<float>> parts;
      std::size_t begin = 0;
      for (const std::size_t size : sizes) {
        parts.push_back(buffer.float_span().subspan(begin, size));
        begin += size;
      }
      for (const bool tree : {false, true}) {
        mine.Write(buffer, values[static_cast<std::size_t>(index)]);
        EXPECT_TRUE((tree ? sums->ReduceScatterTree(StepId(1), parts)
                          : sums->ReduceScatterSum(StepId(1), parts))
                        .ok());
        EXPECT_TRUE(sums->AllGatherParts(StepId(1), parts).ok());
        EXPECT_TRUE(Finish(*sums->stream()).ok());
        EXPECT_EQ(mine.Read(buffer), tree ? as_tree : in_order) << "rank " << index;
      }
    });
  }
  AtOnce(all);
}

TEST_F(NcclTransportTest, RanksWithoutNcclOrOnOneGpuGoThroughTheHost) {
  ranks_.push_back(std::make_unique<TestRank>(world_, 0, TestRank::Options{.num_ranks = 4}));
  ranks_.push_back(
      std::make_unique<TestRank>(world_, 1, TestRank::Options{.num_ranks = 4, .has_nccl = false}));
  ranks_.push_back(
      std::make_unique<TestRank>(world_, 2, TestRank::Options{.num_ranks = 4, .gpu = "GPU-0"}));
  ranks_.push_back(std::make_unique<TestRank>(world_, 3, TestRank::Options{.num_ranks = 4}));
  for (const auto& [to, by_nccl] : {std::pair(1, false), std::pair(2, false), std::pair(3, true)}) {
    const Link link = Open("F", 4, 0, to);
    EXPECT_EQ(link.send->stream() != nullptr, by_nccl) << to;
    const backend::Buffer out = rank(0).Allocate(4), in = rank(to).Allocate(4);
    rank(0).Write(out, std::vector<float>{1, 2, 3, 4});
    AtOnce({[&] { EXPECT_TRUE(link.send->Send({}, BytesOf(out)).ok()); },
            [&] { EXPECT_TRUE(link.recv->Recv({}, BytesOf(in)).ok()); }});
    EXPECT_TRUE(Finish(*link.recv->stream()).ok());
    EXPECT_EQ(rank(to).Read(in), (std::vector<float>{1, 2, 3, 4}));
  }
  // A group uses NCCL if all of its ranks can.
  AtOnce(
      {[&] {
         const auto sums =
             rank(0)
                 .transport
                 ->OpenSums({.name = "g", .ranks = {Rank(0), Rank(3), Rank(1)}, .index = 0})
                 .value();
         EXPECT_EQ(sums->stream(), nullptr);
       },
       [&] {
         EXPECT_TRUE(rank(3)
                         .transport
                         ->OpenSums({.name = "g", .ranks = {Rank(0), Rank(3), Rank(1)}, .index = 1})
                         .ok());
       },
       [&] {
         EXPECT_TRUE(rank(1)
                         .transport
                         ->OpenSums({.name = "g", .ranks = {Rank(0), Rank(3), Rank(1)}, .index = 2})
                         .ok());
       }});
}

TEST_F(NcclTransportTest, WhereNcclIsAskedForAndCannotBeThatIsAnError) {
  ranks_.push_back(std::make_unique<TestRank>(world_, 0, TestRank::Options{.required = true}));
  ranks_.push_back(
      std::make_unique<TestRank>(world_, 1, TestRank::Options{.required = true, .gpu = "GPU-0"}));
  const absl::Status status = rank(0).transport->OpenSend(Rank(1), "F", 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("they share the GPU GPU-0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("parallelism.transport"));
}

TEST(Presence, SurvivesTheRendezvous) {
  const Presence presence{.version = 22809, .device = "GPU-1 2", .shares_gpu = true};
  const Presence read = ParsePresence(ToText(presence)).value();
  EXPECT_EQ(read.version, presence.version);
  EXPECT_EQ(read.device, presence.device);
  EXPECT_TRUE(read.shares_gpu);
  EXPECT_EQ(ParsePresence(ToText({})).value().version, 0);
  for (const char* text :
       {"", "x alone y", "22809", "22809 alone", "-1 alone y", "0 alone y", "1 both y"})
    EXPECT_FALSE(ParsePresence(text).ok()) << text;
}

TEST(Presence, MeetsOnGpusOfItsOwnOrWhereNcclShares) {
  const Presence a{.version = 22809, .device = "a"}, b{.version = 22809, .device = "b"};
  EXPECT_TRUE(CanMeet(a, b).ok());
  EXPECT_FALSE(CanMeet(a, a).ok());
  EXPECT_FALSE(CanMeet(a, {}).ok());
  EXPECT_FALSE(CanMeet(a, {.version = 22808, .device = "b"}).ok());
  const Presence shares{.version = 23003, .device = "a", .shares_gpu = true};
  EXPECT_TRUE(CanMeet(shares, shares).ok());
  const Presence old{.version = 22809, .device = "a", .shares_gpu = true};
  EXPECT_FALSE(CanMeet(old, old).ok());
}

}  // namespace
}  // namespace takt::transport::nccl
