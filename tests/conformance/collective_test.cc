// SPDX-License-Identifier: Apache-2.0
// What a group over any transport of host memory must do with the bytes that its ranks pass. Ranks
// are threads here.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/direct_ranks.h"
#include "common/base/status.h"
#include "tests/conformance/transport_kinds.h"
#include "worker/transport/channel_collective.h"

namespace takt::conformance {
namespace {

using transport::Collective;
using transport::kSliceBytes;
using transport::Transport;

using Bytes = std::vector<std::byte>;

// What rank `index` of a replica passes in one test.
Bytes BytesOf(int replica, int index, std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(1000 * replica + index));
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Ranks of one length, of none, of less than a message, and of several messages.
std::size_t SizeOf(int index) {
  const std::size_t sizes[] = {3, 0, 4096, 2 * kSliceBytes + 1};
  return sizes[index % 4];
}

class CollectiveTest : public ::testing::TestWithParam<std::string> {
 protected:
  using Body = std::function<absl::Status(Collective& group, int replica)>;

  // Runs `body` on every rank of every replica at once, and returns what each returned. The ranks
  // of a replica are apart, as those of a pipeline are.
  std::vector<absl::Status> OnEveryRank(int replicas, int size, const Body& body) {
    const std::unique_ptr<TransportGroup> group = MakeGroup(GetParam());
    transports_.clear();
    for (int rank = 0; rank < replicas * size; ++rank) {
      transport::TransportOptions options = LoopbackOptions(rank);
      options.num_ranks = replicas * size;
      absl::StatusOr<std::unique_ptr<Transport>> connected = group->Connect(options);
      EXPECT_TRUE(connected.ok()) << connected.status();
      if (!connected.ok()) return {};
      transports_.push_back(*std::move(connected));
    }
    std::vector<absl::Status> results(transports_.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < replicas * size; ++rank) {
      threads.emplace_back([&, rank] {
        const int replica = rank % replicas;
        transport::CollectiveOptions options{.name = absl::StrCat("vocabulary-", replica),
                                             .index = rank / replicas,
                                             .generation = 3,
                                             .large_group = large_group_};
        for (int i = 0; i < size; ++i) options.ranks.push_back(Rank(i * replicas + replica));
        results[rank] = Run(*transports_[rank], options, replica, body);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  void ExpectOkOnEveryRank(int replicas, int size, const Body& body) {
    const std::vector<absl::Status> results = OnEveryRank(replicas, size, body);
    EXPECT_EQ(std::ssize(results), replicas * size);
    for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  }

  // Does the same on groups of several sizes, the last of which is a ring.
  void ExpectOkInSmallAndLargeGroups(const Body& body) {
    ExpectOkOnEveryRank(2, 4, body);
    large_group_ = transport::LargeGroup::kRing;
    for (const int size : {kMostDirectRanks + 1, kMostDirectRanks + 2})
      ExpectOkOnEveryRank(1, size, body);
  }

  std::vector<std::unique_ptr<Transport>> transports_;  // by rank

 private:
  static absl::Status Run(Transport& transport, const transport::CollectiveOptions& options,
                          int replica, const Body& body) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Collective> group,
                     transport::CreateCollective(&transport, options));
    return body(*group, replica);
  }

  transport::LargeGroup large_group_ = transport::LargeGroup::kDirect;
};

TEST_P(CollectiveTest, BroadcastsTheRootsBytesOfAnyLength) {
  ExpectOkOnEveryRank(2, 3, [](Collective& group, int replica) -> absl::Status {
    for (int root = 0; root < group.size(); ++root) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 3 * kSliceBytes + 7}) {
        Bytes data = BytesOf(replica, group.index(), size);
        RETURN_IF_ERROR(group.Broadcast(StepId(1), root, data));
        EXPECT_TRUE(data == BytesOf(replica, root, size)) << size << " bytes of " << root;
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CollectiveTest, GathersPartsOfDifferentLengthsOnEveryRank) {
  for (const int size : {1, 2, 3, 4}) {
    SCOPED_TRACE(size);
    ExpectOkOnEveryRank(size < 4 ? 2 : 1, size, [](Collective& group, int replica) -> absl::Status {
      std::vector<Bytes> parts;
      for (int i = 0; i < group.size(); ++i) parts.emplace_back(SizeOf(i));
      parts[group.index()] = BytesOf(replica, group.index(), SizeOf(group.index()));
      const std::vector<std::span<std::byte>> places(parts.begin(), parts.end());
      RETURN_IF_ERROR(group.AllGather(StepId(1), places));
      for (int i = 0; i < group.size(); ++i)
        EXPECT_TRUE(parts[i] == BytesOf(replica, i, SizeOf(i))) << "part " << i;
      return absl::OkStatus();
    });
  }
}

// Returns the floats of a rank. Their magnitudes differ, so the order of additions shows.
std::vector<float> FloatsOf(int replica, int index, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(1000 * replica + index));
  std::vector<float> floats(count);
  for (float& value : floats) value = 1.0F / static_cast<float>(random() % 100'000 + 1);
  return floats;
}

TEST_P(CollectiveTest, SumsPartsInRankOrderAndGathersThem) {
  ExpectOkInSmallAndLargeGroups([](Collective& group, int replica) -> absl::Status {
    std::size_t count = 0;
    for (int i = 0; i < group.size(); ++i) count += SizeOf(i);
    std::vector<float> sum = FloatsOf(replica, 0, count);
    for (int i = 1; i < group.size(); ++i) {
      const std::vector<float> addend = FloatsOf(replica, i, count);
      for (std::size_t k = 0; k < count; ++k) sum[k] += addend[k];
    }
    std::vector<float> data = FloatsOf(replica, group.index(), count);
    std::vector<std::span<float>> parts;
    std::span<float> left = data;
    for (int i = 0; i < group.size(); ++i) {
      parts.push_back(left.first(SizeOf(i)));
      left = left.subspan(SizeOf(i));
    }
    RETURN_IF_ERROR(group.ReduceScatterSum(StepId(1), parts));
    RETURN_IF_ERROR(group.AllGatherParts(StepId(1), parts));
    EXPECT_TRUE(data == sum) << "rank " << group.index();
    return absl::OkStatus();
  });
}

TEST_P(CollectiveTest, SendsPartsOfDifferentLengthsToTheRootAlone) {
  ExpectOkInSmallAndLargeGroups([](Collective& group, int replica) -> absl::Status {
    for (int root = 0; root < group.size(); ++root) {
      const Bytes mine = BytesOf(replica, group.index(), SizeOf(group.index()));
      std::vector<Bytes> parts;
      for (int i = 0; i < group.size(); ++i) parts.emplace_back(SizeOf(i));
      const std::vector<std::span<std::byte>> places(parts.begin(), parts.end());
      const bool is_root = group.index() == root;
      RETURN_IF_ERROR(group.SendTo(StepId(1), root, mine,
                                   is_root ? places : std::vector<std::span<std::byte>>()));
      for (int i = 0; i < group.size(); ++i) {
        const bool arrived = is_root && i != root;
        EXPECT_TRUE(parts[i] == (arrived ? BytesOf(replica, i, SizeOf(i)) : Bytes(SizeOf(i))))
            << "part " << i << " of root " << root << " on " << group.index();
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CollectiveTest, PassesBytesBetweenSums) {
  ExpectOkOnEveryRank(1, 3, [](Collective& group, int) -> absl::Status {
    for (int step = 1; step <= 20; ++step) {
      double one = 1;
      RETURN_IF_ERROR(group.AllReduceSum(StepId(step), std::span<double>(&one, 1)));
      EXPECT_EQ(one, 3);
      Bytes data(17, static_cast<std::byte>(group.index() == 2 ? step : 0));
      RETURN_IF_ERROR(group.Broadcast(StepId(step), 2, data));
      EXPECT_TRUE(data == Bytes(17, static_cast<std::byte>(step)));
    }
    return absl::OkStatus();
  });
}

TEST_P(CollectiveTest, AnAbortEndsAMeetingToWhichARankDoesNotCome) {
  const absl::Time start = absl::Now();
  const std::vector<absl::Status> results =
      OnEveryRank(1, 3, [this](Collective& group, int) -> absl::Status {
        Bytes data(3 * kSliceBytes);
        // The meeting before the abort passes, and all have opened the group.
        RETURN_IF_ERROR(group.Broadcast(StepId(1), 0, data));
        if (group.index() == 1) {  // comes to no more of them
          for (const std::unique_ptr<Transport>& transport : transports_) transport->Abort();
          return absl::OkStatus();
        }
        std::vector<Bytes> parts(3, data);
        const std::vector<std::span<std::byte>> places(parts.begin(), parts.end());
        return group.AllGather(StepId(1), places);
      });
  ASSERT_EQ(results.size(), 3U);
  for (const int index : {0, 2}) {
    // A rank may see that its peer was aborted before it is aborted itself.
    const absl::Status& status = results[index];
    EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveTest,
                         ::testing::Values("inproc", "shm", "tcp", "gloo", "sparse", "auto"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace takt::conformance
