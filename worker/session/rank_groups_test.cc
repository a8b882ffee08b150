// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_groups.h"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/direct_ranks.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/transport/group_testing.h"
#include "worker/transport/selection/create.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;

// Four stages on four pp ranks, one layer each.
mesh::Partition Partition() {
  mesh::Partition partition;
  for (int s = 0; s < 4; ++s) {
    partition.push_back({StageId(s), PpRank(s), LayerId(s), LayerId(s + 1)});
  }
  return partition;
}

program::Program Holding(int pp_rank, const std::vector<int>& stages) {
  program::Program program;
  program.pp_rank = PpRank(pp_rank);
  program.pp_size = program.num_stages = 4;
  for (const int s : stages) {
    program.slots.push_back({.kind = program::SlotKind::kWeights, .stage = StageId(s), .index = s});
  }
  return program;
}

program::Program OneWay(int pp_rank) { return Holding(pp_rank, {pp_rank}); }
program::Program BothWays(int pp_rank) {
  program::Program program = Holding(pp_rank, {pp_rank, 3 - pp_rank});
  program.mirror = PpRank(3 - pp_rank);
  return program;
}

program::Program Spread(int pp_rank) {
  program::Program program = OneWay(pp_rank);
  program.lanes.push_back({.kind = program::LaneKind::kVocabulary});
  return program;
}

// Returns a program with a pair inside which ranks meet.
program::Program Paired(int pp_rank) {
  program::Program program = OneWay(pp_rank);
  const StageId stage(pp_rank);
  program.body.push_back({.op = program::Op::kOverlap, .stage = stage, .backward_stage = stage});
  const program::Part gather = {program::PartKind::kGather, program::PartGroup::kTensor};
  program.part_lists.push_back({program::Op::kOverlap, stage, stage, {gather, program::Part{}}});
  return program;
}

TEST(HoldersOf, AreTheReplicasOfAStageInOrder) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2};
  EXPECT_THAT(HoldersOf(StageId(1), mesh, Rank(2), OneWay(1)), ElementsAre(Rank(2), Rank(3)));
}

TEST(HoldersOf, HaveTheSamePartOfTheLayersAndAnyPartOfTheSequences) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2, .cp_size = 2, .tp_size = 2};
  EXPECT_THAT(HoldersOf(StageId(1), mesh, Rank(11), OneWay(1)),
              ElementsAre(Rank(9), Rank(11), Rank(13), Rank(15)));
}

TEST(HoldersOf, OfABidirectionalStageAreOfEachReplicaThePrimaryThenTheOther) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2};
  for (const int pp_rank : {0, 3}) {
    const Rank rank(2 * pp_rank);
    EXPECT_THAT(HoldersOf(StageId(0), mesh, rank, BothWays(pp_rank)),
                ElementsAre(Rank(0), Rank(6), Rank(1), Rank(7)));
    EXPECT_THAT(HoldersOf(StageId(3), mesh, rank, BothWays(pp_rank)),
                ElementsAre(Rank(6), Rank(0), Rank(7), Rank(1)));
  }
}

TEST(ExpertHoldersOf, AreEveryOtherReplicaOfTwoThatShare) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 4};
  EXPECT_THAT(ExpertHoldersOf(StageId(1), mesh, Rank(5), OneWay(1), 2),
              ElementsAre(Rank(5), Rank(7)));
  EXPECT_THAT(ExpertHoldersOf(StageId(1), mesh, Rank(5), OneWay(1), 4), ElementsAre(Rank(5)));
  EXPECT_THAT(ExpertHoldersOf(StageId(0), mesh, Rank(1), BothWays(0), 2),
              ElementsAre(Rank(1), Rank(13), Rank(3), Rank(15)));
}

TEST(SharersOf, OfABidirectionalPipelineStandByPpRank) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2};
  for (const int pp_rank : {0, 3}) {
    EXPECT_THAT(SharersOf(mesh, Rank(2 * pp_rank + 1), BothWays(pp_rank)),
                ElementsAre(Rank(0), Rank(6), Rank(1), Rank(7)));
  }
  EXPECT_THAT(SharersOf(mesh, Rank(2), OneWay(1)), ElementsAre(Rank(2), Rank(3)));
}

struct Sizes {
  std::map<int, int> replicas;  // by stage
  int pipeline = 0, tied = 0, vocabulary = 0, tensor = 0, context = 0;
  int pair_tensor = 0, pair_context = 0;
};

// Runs one thread for each rank. Returns what each rank found out by summing ones.
std::vector<Sizes> Connect(const mesh::Mesh& mesh, program::Program (*program_of)(int)) {
  testing::InprocHub hub;
  const mesh::Partition partition = Partition();
  std::vector<Sizes> sizes(mesh.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.Connect({.rank = Rank(rank), .num_ranks = mesh.size()});
      const program::Program program = program_of(mesh.PpRankOf(Rank(rank)).value());
      const auto groups = RankGroups::Connect(*transport, {.rank = Rank(rank),
                                                           .mesh = mesh,
                                                           .partition = &partition,
                                                           .program = &program,
                                                           .tied_embeddings = true,
                                                           .generation = 1});
      ASSERT_TRUE(groups.ok()) << groups.status();
      const auto count = [&](transport::Collective* group) {
        float sum = 1;
        EXPECT_TRUE(group->AllReduceSum(StepId(1), std::span<float>(&sum, 1)).ok());
        return static_cast<int>(sum);
      };
      for (const auto& [stage, group] : groups->replicas()) {
        sizes[rank].replicas[stage.value()] = count(group);
      }
      if (groups->pipeline() != nullptr) sizes[rank].pipeline = count(groups->pipeline());
      if (groups->tied() != nullptr) sizes[rank].tied = count(groups->tied());
      if (groups->vocabulary() != nullptr) sizes[rank].vocabulary = count(groups->vocabulary());
      if (groups->tensor() != nullptr) sizes[rank].tensor = count(groups->tensor());
      if (groups->context() != nullptr) sizes[rank].context = count(groups->context());
      if (groups->pair_tensor() != nullptr) sizes[rank].pair_tensor = count(groups->pair_tensor());
      if (groups->pair_context() != nullptr)
        sizes[rank].pair_context = count(groups->pair_context());
    });
  }
  threads.clear();
  return sizes;
}

// Counts the keys that ranks set.
class CountingRendezvous final : public transport::Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    {
      std::lock_guard lock(mutex_);
      keys_.insert(key);
    }
    return map_.Set(key, value);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return map_.Wait(key, timeout);
  }
  std::size_t num_keys() {
    std::lock_guard lock(mutex_);
    return keys_.size();
  }

 private:
  testing::MapRendezvous map_;
  std::mutex mutex_;
  std::set<std::string> keys_;
};

// Returns how many keys the ranks of a job over TCP need to connect all groups, if their workers
// speak that version of the protocol, and checks sums.
std::size_t KeysOf(const mesh::Mesh& mesh, int protocol) {
  const bool sparse = protocol >= kSparseProtocolVersion;
  mesh::Partition partition;
  for (int s = 0; s < mesh.pp_size; ++s)
    partition.push_back({StageId(s), PpRank(s), LayerId(s), LayerId(s + 1)});
  CountingRendezvous rendezvous;
  // They end after the last thread: a peer may still receive.
  std::vector<std::unique_ptr<transport::Transport>> transports(mesh.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const transport::TransportOptions options{
          .rank = Rank(rank),
          .num_ranks = mesh.size(),
          .job = "j",
          .generation = 1,
          .secret = std::string(32, 's'),
          .data_address = "127.0.0.1",
          .plain_sockets = protocol >= kPlainSocketsProtocolVersion,
          .sparse_meeting = sparse};
      auto transport = transport::CreateTransport(options, config::TransportKind::kTcp, rendezvous);
      ASSERT_TRUE(transport.ok()) << transport.status();
      transports[rank] = *std::move(transport);
      const int pp_rank = mesh.PpRankOf(Rank(rank)).value();
      program::Program program = Holding(pp_rank, {pp_rank});
      program.pp_size = program.num_stages = mesh.pp_size;
      const auto groups = RankGroups::Connect(*transports[rank], {.rank = Rank(rank),
                                                                  .mesh = mesh,
                                                                  .partition = &partition,
                                                                  .program = &program,
                                                                  .generation = 1,
                                                                  .sparse_meeting = sparse});
      ASSERT_TRUE(groups.ok()) << groups.status();
      double ranks = 1, copies = 1;
      EXPECT_TRUE(groups->pipeline()->AllReduceSum(StepId(1), std::span<double>(&ranks, 1)).ok());
      EXPECT_EQ(ranks, mesh.pp_size);
      transport::Collective* const replicas = groups->replicas().at(StageId(pp_rank));
      EXPECT_TRUE(replicas->AllReduceSum(StepId(1), std::span<double>(&copies, 1)).ok());
      EXPECT_EQ(copies, mesh.dp_size);
    });
  }
  threads.clear();
  return rendezvous.num_keys();
}

TEST(RankGroups, ThatMeetSparselyOverTcpNeedOneKeyForEachRankThatListens) {
  const mesh::Mesh mesh{.pp_size = 9, .dp_size = 2};
  EXPECT_LE(KeysOf(mesh, kPlainSocketsProtocolVersion), 18u);
  EXPECT_LE(KeysOf(mesh, kSparseProtocolVersion), 18u);
  // Ranks of protocol 3 set five keys for each pair of a group.
  EXPECT_EQ(KeysOf(mesh, kSparseProtocolVersion - 1), 5u * (2 * 9 * 8 / 2 + 9));
}

TEST(RankGroups, ThatShareTheOptimizersStateConnectNeighboursWhereAllWorkersCan) {
  constexpr int kReplicas = kMostDirectRanks + 1;
  for (const bool chains : {true, false}) {
    SCOPED_TRACE(chains);
    transport::Traffic traffic;
    testing::InprocHub hub;
    const mesh::Mesh mesh{.pp_size = 1, .dp_size = kReplicas};
    const mesh::Partition partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)}};
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kReplicas; ++rank) {
      threads.emplace_back([&, rank] {
        transport::CountingTransport transport(
            hub.Connect({.rank = Rank(rank), .num_ranks = kReplicas}), Rank(rank), traffic);
        program::Program program = Holding(0, {0});
        program.pp_size = program.num_stages = 1;
        program.body.push_back({.op = program::Op::kGatherWeights, .stage = StageId(0)});
        ASSERT_TRUE(program::ShardsOptimizer(program));
        const auto groups = RankGroups::Connect(transport, {.rank = Rank(rank),
                                                            .mesh = mesh,
                                                            .partition = &partition,
                                                            .program = &program,
                                                            .sparse_meeting = true,
                                                            .sharing_chains = chains});
        ASSERT_TRUE(groups.ok()) << groups.status();
        ASSERT_NE(groups->sharers(), nullptr);
        ASSERT_TRUE(groups->replicas().contains(StageId(0)));
      });
    }
    threads.clear();
    constexpr int kDirect = kReplicas * (kReplicas - 1), kChain = 2 * (kReplicas - 1);
    EXPECT_EQ(traffic.channels,
              (std::map<std::string, int>{{"replicas-0", chains ? kChain + 1 : kDirect},  // a ring
                                          {"sharers-0", chains ? kChain : kDirect}}));
  }
}

TEST(RankGroups, AreThereASecondTimeWhereRanksMeetInsidePairs) {
  const mesh::Mesh mesh{.pp_size = 4, .cp_size = 2, .tp_size = 2};
  for (const bool pairs : {true, false}) {
    for (const Sizes& sizes : Connect(mesh, pairs ? Paired : OneWay)) {
      EXPECT_EQ(sizes.tensor, 2);
      EXPECT_EQ(sizes.pair_tensor, pairs ? 2 : 0);
      EXPECT_EQ(sizes.pair_context, pairs ? 2 : 0);
    }
  }
}

TEST(RankGroups, OfAPipelineWithOneCopy) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2};
  const std::vector<Sizes> sizes = Connect(mesh, &OneWay);
  for (int rank = 0; rank < 8; ++rank) {
    const int pp_rank = rank / 2;
    EXPECT_EQ(sizes[rank].replicas, (std::map<int, int>{{pp_rank, 2}}));
    EXPECT_EQ(sizes[rank].pipeline, 4);
    EXPECT_EQ(sizes[rank].tied, pp_rank == 0 || pp_rank == 3 ? 2 : 0);
  }
  for (const Sizes& alone : Connect({.pp_size = 4, .dp_size = 1}, &OneWay)) {
    EXPECT_TRUE(alone.replicas.empty());
  }
}

TEST(RankGroups, OfRanksThatShareLayersAreApartFromThoseOfReplicas) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2, .tp_size = 3};
  const std::vector<Sizes> sizes = Connect(mesh, &OneWay);
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(sizes[rank].replicas, (std::map<int, int>{{rank / 6, 2}}));
    EXPECT_EQ(sizes[rank].pipeline, 4);
    EXPECT_EQ(sizes[rank].tensor, 3);
  }
  EXPECT_EQ(Connect({.pp_size = 4, .dp_size = 2}, &OneWay)[0].tensor, 0);
}

TEST(RankGroups, OfRanksThatShareSequencesAreReplicasToo) {
  const mesh::Mesh mesh{.pp_size = 4, .dp_size = 2, .cp_size = 3};
  const std::vector<Sizes> sizes = Connect(mesh, &OneWay);
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(sizes[rank].replicas, (std::map<int, int>{{rank / 6, 6}}));
    EXPECT_EQ(sizes[rank].pipeline, 4);
    EXPECT_EQ(sizes[rank].context, 3);
    EXPECT_EQ(mesh.ReplicaOf(Rank(rank)), rank % 6);
  }
  EXPECT_EQ(Connect({.pp_size = 4, .dp_size = 2}, &OneWay)[0].context, 0);
}

TEST(RankGroups, OfASpreadVocabularyMeetAndNeedNoTiedOne) {
  const std::vector<Sizes> sizes = Connect({.pp_size = 4, .dp_size = 2}, &Spread);
  for (int rank = 0; rank < 8; ++rank) {
    const int pp_rank = rank / 2;
    EXPECT_EQ(sizes[rank].replicas, (std::map<int, int>{{pp_rank, 2}, {4, 2}}));
    EXPECT_EQ(sizes[rank].pipeline, 4);
    EXPECT_EQ(sizes[rank].vocabulary, 4);
    EXPECT_EQ(sizes[rank].tied, 0);
  }
}

TEST(RankGroups, OfABidirectionalPipelineJoinItsTwoCopies) {
  for (const int dp_size : {1, 2}) {
    const mesh::Mesh mesh{.pp_size = 4, .dp_size = dp_size};
    const std::vector<Sizes> sizes = Connect(mesh, &BothWays);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const int pp_rank = rank / dp_size;
      EXPECT_EQ(sizes[rank].replicas,
                (std::map<int, int>{{pp_rank, 2 * dp_size}, {3 - pp_rank, 2 * dp_size}}));
      EXPECT_EQ(sizes[rank].pipeline, 4);
      EXPECT_EQ(sizes[rank].tied, 0);  // each of their ranks has both ends
    }
  }
}

}  // namespace
}  // namespace takt::session
