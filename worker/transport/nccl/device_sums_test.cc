// SPDX-License-Identifier: Apache-2.0
// Tests each collective of a group of simulated devices by the fake NCCL: the order in which it is
// left on the stream, and how it ends when a call fails, a peer does not come, or it is aborted.
#include "worker/transport/nccl/device_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/transport/nccl/nccl_testing.h"

namespace takt::transport::nccl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Call = FakeNccl::Call;

constexpr std::size_t kFloats = 1000;

// A group of all ranks, each with memory for it. Rank r has kFloats values of r + 1.
class Ranks {
 public:
  explicit Ranks(int num_ranks, TestRank::Options options = {}) {
    options.num_ranks = num_ranks;
    for (int r = 0; r < num_ranks; ++r)
      ranks_.push_back(std::make_unique<TestRank>(world_, r, options));
    groups_.resize(ranks_.size());
    data_.resize(ranks_.size());
    OnEach([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      CollectiveOptions options_of_group{.name = "tensor-0", .index = r};
      for (int other = 0; other < num_ranks; ++other) options_of_group.ranks.emplace_back(other);
      groups_[i] = ranks_[i]->transport->OpenSums(options_of_group).value();
      data_[i] = ranks_[i]->Allocate(kFloats);
      ranks_[i]->Write(data_[i], std::vector<float>(kFloats, static_cast<float>(r + 1)));
    });
  }
  // Ranks end together, as those of a job do.
  ~Ranks() {
    OnEach([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      groups_[i].reset();
      data_[i] = {};
      ranks_[i].reset();
    });
    EXPECT_THAT(nccl.misuse(), IsEmpty());
    EXPECT_EQ(nccl.num_open(), 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  TestRank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  Collective& group(int r) { return *groups_[static_cast<std::size_t>(r)]; }
  std::span<float> data(int r) {
    return data_[static_cast<std::size_t>(r)].float_span().first(kFloats);
  }
  void Write(int r, std::span<const float> values) {
    rank(r).Write(data_[static_cast<std::size_t>(r)], values);
  }
  // Waits for the stream of the group, and returns what is in the memory.
  std::vector<float> Read(int r) {
    EXPECT_TRUE(Finish(*group(r).stream()).ok());
    return rank(r).Read(data_[static_cast<std::size_t>(r)]);
  }
  // Calls f(rank) for all ranks at once.
  void OnEach(const std::function<void(int)>& f) {
    std::vector<std::function<void()>> all;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) all.emplace_back([&f, r] { f(r); });
    AtOnce(all);
  }

  FakeNccl nccl;  // outlives the ranks

 private:
  TestWorld world_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
  std::vector<std::unique_ptr<Collective>> groups_;
  std::vector<backend::Buffer> data_;
};

std::vector<std::span<float>> PartsOf(std::span<float> data, int num_parts) {
  std::vector<std::span<float>> parts;
  const auto count = static_cast<std::size_t>(num_parts);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = data.size() * i / count, end = data.size() * (i + 1) / count;
    parts.push_back(data.subspan(begin, end - begin));
  }
  return parts;
}

absl::Status GatherBytes(Collective& group, std::span<float> data) {
  std::vector<std::span<std::byte>> parts;
  for (const std::span<float> part : PartsOf(data, group.size()))
    parts.push_back(std::as_writable_bytes(part));
  return group.AllGather(StepId(1), parts);
}

// Each of the two terms has half of the values.
constexpr Collective::Terms kTwoTerms{.count = 2, .stride = kFloats / 2};

// What a rank may do with its group.
struct Way {
  const char* name;
  absl::Status (*run)(Collective& group, std::span<float> data);
};

std::vector<Way> Ways() {
  return {{"sum", [](Collective& group,
                     std::span<float> data) { return group.AllReduceSum(StepId(1), data); }},
          {"scatter",
           [](Collective& group, std::span<float> data) {
             return group.ReduceScatterSum(StepId(1), PartsOf(data, group.size()));
           }},
          {"tree",
           [](Collective& group, std::span<float> data) {
             return group.ReduceScatterTree(StepId(1), PartsOf(data, group.size()));
           }},
          {"sum of terms",
           [](Collective& group, std::span<float> data) {
             return group.AllReduceTerms(StepId(1), data.first(kFloats / 2), kTwoTerms);
           }},
          {"scatter of terms",
           [](Collective& group, std::span<float> data) {
             return group.ReduceScatterTerms(
                 StepId(1), PartsOf(data.first(kFloats / 2), group.size()), kTwoTerms);
           }},
          {"gather",
           [](Collective& group, std::span<float> data) {
             return group.AllGatherParts(StepId(1), PartsOf(data, group.size()));
           }},
          {"bytes", GatherBytes}};
}

TEST(DeviceSums, LeaveAllOnTheStreamInTheOrderOfTheCalls) {
  Ranks ranks(2, {.lazy = true});
  // No stream begins before the host waits for it.
  ranks.OnEach([&](int r) {
    Collective& group = ranks.group(r);
    const std::vector<std::span<float>> parts = PartsOf(ranks.data(r), 2);
    EXPECT_TRUE(group.ReduceScatterSum(StepId(1), parts).ok());      // 3 in the rank's part
    EXPECT_TRUE(group.AllGatherParts(StepId(1), parts).ok());        // 3
    EXPECT_TRUE(group.ReduceScatterTree(StepId(1), parts).ok());     // 6 in the rank's part
    EXPECT_TRUE(GatherBytes(group, ranks.data(r)).ok());             // 6
    EXPECT_TRUE(group.AllReduceSum(StepId(1), ranks.data(r)).ok());  // 12
    EXPECT_TRUE(group.ReduceScatterSum(StepId(1), parts).ok());      // 24 in the rank's part
    EXPECT_TRUE(group.AllGatherParts(StepId(1), parts).ok());        // 24
  });
  ranks.OnEach([&](int r) { EXPECT_EQ(ranks.Read(r), std::vector<float>(kFloats, 24)); });
  // A sum of whole data takes two groups of operations, and connecting took one.
  EXPECT_EQ(ranks.nccl.num_given(), 2 * 9);
}

TEST(DeviceSums, AddTheTermsOfOneRankBeforeThoseOfTheNext) {
  // Only this order gives 3: the first 1 is lost beside 1e8.
  constexpr float kTerms[3][2] = {{1e8F, 1}, {-1e8F, 1}, {1, 1}};
  Ranks ranks(3);
  const auto write = [&](int r) {
    std::vector<float> values(kFloats, kTerms[r][1]);  // the last term
    std::fill_n(values.begin() + kFloats / 2, kFloats / 2, kTerms[r][0]);
    ranks.Write(r, values);
  };
  ranks.OnEach([&](int r) {
    write(r);
    const std::span<float> data = ranks.data(r).first(kFloats / 2);
    EXPECT_TRUE(ranks.group(r).AllReduceTerms(StepId(1), data, kTwoTerms).ok());
    std::vector<float> sums = ranks.Read(r);
    sums.resize(kFloats / 2);
    EXPECT_EQ(sums, std::vector<float>(kFloats / 2, 3));
    write(r);
    const std::vector<std::span<float>> parts = PartsOf(data, 3);
    EXPECT_TRUE(ranks.group(r).ReduceScatterTerms(StepId(1), parts, kTwoTerms).ok());
    EXPECT_EQ(ranks.Read(r)[kFloats / 6 * static_cast<std::size_t>(r) + 1], 3);
  });
}

TEST(DeviceSums, AddTheTermsOfRanksThatTakeTurnsOneByOne) {
  // Ranks 0 and 1 take turns, and so do ranks 2 and 3. Without turns the sum is 1.
  constexpr float kTerms[4][2] = {{1e8F, 1}, {-1e8F, 1}, {1e8F, 1}, {-1e8F, 1}};
  Ranks ranks(4);
  ranks.OnEach([&](int r) {
    std::vector<float> values(kFloats, kTerms[r][1]);  // the last term
    std::fill_n(values.begin() + kFloats / 2, kFloats / 2, kTerms[r][0]);
    ranks.Write(r, values);
    Collective::Terms terms = kTwoTerms;
    terms.in_turns = 2;
    const std::span<float> data = ranks.data(r).first(kFloats / 2);
    EXPECT_TRUE(ranks.group(r).AllReduceTerms(StepId(1), data, terms).ok());
    std::vector<float> sums = ranks.Read(r);
    sums.resize(kFloats / 2);
    EXPECT_EQ(sums, std::vector<float>(kFloats / 2, 2));
  });
}

TEST(DeviceSums, PassBytesOfDifferentLengths) {
  Ranks ranks(3);
  ranks.OnEach([&](int r) {
    const std::span<float> data = ranks.data(r);
    // Rank 1 has nothing to give.
    const std::vector<std::span<float>> places = {data.first(5), data.subspan(5, 0),
                                                  data.subspan(5, 700)};
    std::vector<std::span<std::byte>> parts;
    for (const std::span<float> place : places) parts.push_back(std::as_writable_bytes(place));
    EXPECT_TRUE(ranks.group(r).AllGather(StepId(1), parts).ok());
    std::vector<float> expected(kFloats, static_cast<float>(r + 1));
    for (std::size_t i = 0; i < 705; ++i) expected[i] = i < 5 ? 1 : 3;
    EXPECT_EQ(ranks.Read(r), expected) << "rank " << r;

    // The others' last values go to rank 0.
    const std::vector<std::span<std::byte>> from = {
        {}, std::as_writable_bytes(data.subspan(0, 2)), std::as_writable_bytes(data.subspan(2, 2))};
    EXPECT_TRUE(ranks.group(r)
                    .SendTo(StepId(1), 0, std::as_bytes(data.last(2)),
                            r == 0 ? Collective::Received(from) : Collective::Received())
                    .ok());
    if (r != 0) return;
    for (std::size_t i = 0; i < 4; ++i) expected[i] = i < 2 ? 2 : 3;
    EXPECT_EQ(ranks.Read(0), expected);
  });
}

// A gather inside F must not wait for the messages that a rank receives for later microbatches.
TEST(DeviceSums, AreNotHeldUpByAMessageThatDoesNotCome) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    Ranks ranks(2);
    constexpr std::size_t kBytes = 4 * sizeof(float);
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> receive;
    AtOnce({[&] { send = ranks.rank(0).transport->OpenSend(Rank(1), "F", kBytes).value(); },
            [&] { receive = ranks.rank(1).transport->OpenRecv(Rank(0), "F", kBytes).value(); }});
    const backend::Buffer out = ranks.rank(0).Allocate(4), in = ranks.rank(1).Allocate(4);
    ASSERT_TRUE(receive->Recv({}, BytesOf(in)).ok());
    ranks.OnEach([&](int r) {
      EXPECT_TRUE(way.run(ranks.group(r), ranks.data(r)).ok());
      EXPECT_TRUE(Finish(*ranks.group(r).stream()).ok());
    });
    ASSERT_TRUE(send->Send({}, BytesOf(out)).ok());
    EXPECT_TRUE(Finish(*receive->stream()).ok());
  }
}

TEST(DeviceSums, AnErrorOfACallEndsAllAndNamesTheGroup) {
  for (const Way& way : Ways()) {
    for (const Call call : {Call::kSend, Call::kRecv, Call::kGroupEnd}) {
      SCOPED_TRACE(way.name);
      Ranks ranks(2);
      EXPECT_TRUE(way.run(ranks.group(1), ranks.data(1)).ok());
      ranks.nccl.Inject({.device = 0, .call = call, .result = kRemoteError});
      const absl::Status failed = way.run(ranks.group(0), ranks.data(0));
      EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr("group tensor-0"));
      EXPECT_EQ(ranks.rank(0).AwaitEnding(), std::pair(failed, false));
      EXPECT_EQ(way.run(ranks.group(0), ranks.data(0)), failed);
      ranks.rank(1).transport->Abort();  // as the control plane does
      EXPECT_TRUE(Finish(*ranks.group(1).stream()).ok()) << "the abort ends what it was at";
      EXPECT_EQ(ranks.rank(1).transport->status().code(), absl::StatusCode::kAborted);
    }
  }
}

TEST(DeviceSums, AnErrorThatNobodyWaitsForIsFound) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    Ranks ranks(2);
    EXPECT_TRUE(way.run(ranks.group(1), ranks.data(1)).ok());  // the other rank never comes
    ranks.nccl.Break(1, kRemoteError);
    const auto [reason, stuck] = ranks.rank(1).AwaitEnding();
    EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
    EXPECT_FALSE(stuck);
    EXPECT_TRUE(Finish(*ranks.group(1).stream()).ok());
    ranks.rank(0).transport->Abort();
  }
}

TEST(DeviceSums, APeerThatDoesNotComeIsToldAtTheDeadline) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    Ranks ranks(2, {.operation_timeout = absl::Milliseconds(200)});
    way.run(ranks.group(1), ranks.data(1)).IgnoreError();
    const auto [reason, stuck] = ranks.rank(1).AwaitEnding();
    EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded) << reason;
    EXPECT_THAT(std::string(reason.message()), HasSubstr("group tensor-0"));
    EXPECT_FALSE(stuck);
    EXPECT_TRUE(Finish(*ranks.group(1).stream()).ok());
    ranks.rank(0).transport->Abort();
  }
}

TEST(DeviceSums, AnAbortEndsEach) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    Ranks ranks(2);
    EXPECT_TRUE(way.run(ranks.group(1), ranks.data(1)).ok());
    ranks.rank(1).transport->Abort();
    EXPECT_TRUE(Finish(*ranks.group(1).stream()).ok());
    const auto [reason, stuck] = ranks.rank(1).AwaitEnding();
    EXPECT_EQ(reason.code(), absl::StatusCode::kAborted) << reason;
    EXPECT_FALSE(stuck);
    EXPECT_FALSE(way.run(ranks.group(1), ranks.data(1)).ok());
    ranks.rank(0).transport->Abort();
  }
}

}  // namespace
}  // namespace takt::transport::nccl
