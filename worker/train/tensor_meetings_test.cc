// SPDX-License-Identifier: Apache-2.0
// Tests the meetings in memory of the host, and in memory of simulated devices that do nothing
// before the host waits for them: through the host, and by the fake NCCL.
#include "worker/train/tensor_meetings.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/model/split_layers.h"
#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/group_testing.h"
#include "worker/transport/nccl/nccl_testing.h"

namespace takt::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kRanks = 4;
constexpr std::int64_t kRows = 8, kColumns = 2;
constexpr std::int64_t kWords = 6 * model::kVocabularyBlock;

model::TensorShare ShareOf(int rank) { return {.size = kRanks, .index = rank, .leaves = kRanks}; }

// One rank, with memory for what it passes on.
struct Node {
  TensorMeetings& meetings;
  backend::Backend& backend;
  std::vector<backend::Buffer> buffers = {};

  float* Put(const std::vector<float>& values) {
    buffers.push_back(
        backend.Allocate(values.size() * sizeof(float), MemoryKind::kMessages).value());
    EXPECT_TRUE(backend.CopyFromHost(std::as_bytes(std::span(values)), buffers.back().data()).ok());
    EXPECT_TRUE(backend.Synchronize().ok());
    return buffers.back().floats();
  }
  std::vector<float> Get(const float* from, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    EXPECT_TRUE(backend
                    .CopyToHost(reinterpret_cast<const std::byte*>(from),
                                std::as_writable_bytes(std::span(values)))
                    .ok());
    EXPECT_TRUE(backend.Synchronize().ok());
    return values;
  }
  // Returns this rank's rows of a tensor [N,C].
  std::vector<float> GetOwnRows(const float* tensor) {
    return Get(tensor + meetings.first_row() * kColumns, meetings.rows_here() * kColumns);
  }
};

using Body = std::function<absl::Status(Node&)>;

absl::Status RunRank(int rank, backend::Backend& backend, transport::Collective& group,
                     const Body& body) {
  engine::PartCursor cursor;
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorMeetings> meetings,
                   TensorMeetings::Create({.group = &group,
                                           .cursor = &cursor,
                                           .backend = &backend,
                                           .share = ShareOf(rank),
                                           .rows = kRows,
                                           .columns = kColumns,
                                           .vocab = kWords}));
  meetings->BeginStep(StepId(1));
  Node node{.meetings = *meetings, .backend = backend};
  absl::Status status = body(node);
  status.Update(backend.Synchronize());
  return status;
}

transport::CollectiveOptions GroupOf(int rank) {
  return {.name = "tensor", .ranks = {Rank(0), Rank(1), Rank(2), Rank(3)}, .index = rank};
}

void ForAllOnHosts(const Body& body) {
  ForAllRanks(kRanks, [&](transport::Collective& group) -> absl::Status {
    const auto backends = backend::CreateCpuBackends({});
    ASSIGN_OR_RETURN(const std::unique_ptr<backend::Backend> backend, backends->CreateCompute());
    return RunRank(group.index(), *backend, group, body);
  });
}

void ForAllOnDevices(bool has_nccl, const Body& body) {
  transport::nccl::FakeNccl nccl;
  {
    transport::nccl::TestWorld world;
    std::vector<std::unique_ptr<transport::nccl::TestRank>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(std::make_unique<transport::nccl::TestRank>(
          world, rank,
          transport::nccl::TestRank::Options{
              .num_ranks = kRanks, .has_nccl = has_nccl, .lazy = true}));
    }
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::unique_ptr<transport::nccl::TestRank>& mine = ranks[static_cast<std::size_t>(rank)];
        {
          const auto group = mine->transport->OpenSums(GroupOf(rank)).value();
          EXPECT_EQ(group->stream() != nullptr, has_nccl);
          EXPECT_TRUE(RunRank(rank, *mine->backend, *group, body).ok()) << rank;
        }
        mine.reset();  // all ranks end together
      });
    }
  }
  EXPECT_THAT(nccl.misuse(), IsEmpty());
}

// Calls `body` for each of four ranks, on a thread of its own, wherever their memory is.
void ForAll(const Body& body) {
  {
    SCOPED_TRACE("hosts");
    ForAllOnHosts(body);
  }
  for (const bool has_nccl : {false, true}) {
    SCOPED_TRACE(has_nccl ? "devices, by NCCL" : "devices, through the host");
    ForAllOnDevices(has_nccl, body);
  }
}

TEST(TensorMeetings, GatherTheRowsOfAllRanks) {
  ForAll([](Node& node) {
    std::vector<float> rows(kRows * kColumns, -1);
    for (std::int64_t i = 0; i < node.meetings.rows_here() * kColumns; ++i) {
      const std::int64_t element = node.meetings.first_row() * kColumns + i;
      rows[static_cast<std::size_t>(element)] = static_cast<float>(element);
    }
    float* const tensor = node.Put(rows);
    const absl::Status status = node.meetings.GatherRows(tensor);
    const std::vector<float> all = node.Get(tensor, kRows * kColumns);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<float>(i));
    return status;
  });
}

// A row [C] in bf16 has the bytes of one float here.
TEST(TensorMeetings, GatherRowsInBf16) {
  ForAll([](Node& node) {
    std::vector<float> rows(kRows, -1);
    for (std::int64_t i = 0; i < node.meetings.rows_here(); ++i) {
      const std::int64_t row = node.meetings.first_row() + i;
      rows[static_cast<std::size_t>(row)] = static_cast<float>(row);
    }
    float* const tensor = node.Put(rows);
    const absl::Status status = node.meetings.GatherRows(reinterpret_cast<backend::Bf16*>(tensor));
    EXPECT_THAT(node.Get(tensor, kRows), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    return status;
  });
}

// In another order the sum would be 1 or 2.
TEST(TensorMeetings, ScatterSumsAlongTheTree) {
  ForAll([](Node& node) {
    constexpr float kValues[] = {1.0F, 1e8F, -1e8F, 1.0F};
    float* const tensor =
        node.Put(std::vector<float>(kRows * kColumns, kValues[node.meetings.share().index]));
    const absl::Status status = node.meetings.ScatterRows(tensor);
    EXPECT_THAT(node.GetOwnRows(tensor), Each(0.0F));
    return status;
  });
}

// What is computed comes before the meeting that passes it on, and after the one that brings it.
TEST(TensorMeetings, ComeInTheOrderOfTheBackendsWork) {
  ForAll([](Node& node) -> absl::Status {
    constexpr std::int64_t kCount = kRows * kColumns;
    float* const tensor = node.Put(std::vector<float>(kCount, 0));
    for (int round = 0; round < 3; ++round) {
      RETURN_IF_ERROR(node.backend.Run(
          backend::Fill{.output = tensor, .value = static_cast<float>(round), .count = kCount}));
      RETURN_IF_ERROR(node.meetings.ScatterRows(tensor));
      RETURN_IF_ERROR(node.backend.Run(
          backend::Add{.a = tensor, .b = tensor, .output = tensor, .count = kCount}));
      RETURN_IF_ERROR(node.meetings.GatherRows(tensor));
    }
    EXPECT_THAT(node.Get(tensor, kCount), Each(static_cast<float>(2 * kRanks * 2)));
    return absl::OkStatus();
  });
}

// The blocks of words are dealt 1, 2, 1, 2.
TEST(TensorMeetings, GatherTheSoftmaxOfAllBlocks) {
  ForAll([](Node& node) {
    constexpr std::int64_t kFloats = sizeof(backend::SoftmaxPart) / sizeof(float);
    constexpr std::int64_t kOfBlock = kRows * kFloats;
    const auto [first, last] = model::BlocksOf(node.meetings.share(), kWords);
    std::vector<float> parts(6 * kOfBlock, -1);
    for (std::int64_t i = first * kOfBlock; i < last * kOfBlock; ++i)
      parts[static_cast<std::size_t>(i)] = static_cast<float>(i);
    float* const all = node.Put(parts);
    const absl::Status status =
        node.meetings.GatherSoftmax(reinterpret_cast<backend::SoftmaxPart*>(all));
    const std::vector<float> gathered = node.Get(all, 6 * kOfBlock);
    for (std::size_t i = 0; i < gathered.size(); ++i) EXPECT_EQ(gathered[i], static_cast<float>(i));
    return status;
  });
}

// Six blocks with the values 1, 2, 4, 8, 16 and 32. Their tree is ((0+1)+(2+3)) + (4+5).
TEST(TensorMeetings, AddWhatRunsOfBlocksLeave) {
  ForAll([](Node& node) -> absl::Status {
    const auto [first, last] = model::BlocksOf(node.meetings.share(), kWords);
    std::vector<float*> mine;
    for (const model::TreeSum::Part& part : model::PartialSumsOf(first, last).parts) {
      float value = 0;
      for (int block = part.first; block < part.first + part.size; ++block)
        value += static_cast<float>(1 << block);
      mine.push_back(node.Put(std::vector<float>(kRows * kColumns, value)));
    }
    float* const received = node.Put(std::vector<float>(6 * kRows * kColumns));
    ASSIGN_OR_RETURN(const float* const sum, node.meetings.ScatterSums(mine, received));
    EXPECT_THAT(node.Get(sum, node.meetings.rows_here() * kColumns), Each(63.0F));
    return absl::OkStatus();
  });
}

// There are more values than scratch has room for.
TEST(TensorMeetings, SumOverTheRanksThatHoldAPiece) {
  ForAll([](Node& node) {
    const int rank = node.meetings.share().index;
    const auto value = static_cast<float>(rank);
    float* const of_two = node.Put({value, 1, 2, value, 4, 5, 6, 7, value});
    float* const of_all = node.Put({1, value});
    float* const scratch = node.Put(std::vector<float>(kRows / kRanks * kColumns));
    const absl::Status status = node.meetings.Exchange([&]() -> absl::Status {
      const model::TensorShare& share = node.meetings.share();
      RETURN_IF_ERROR(node.meetings.SumOverHolders(model::SplitOf(/*pieces=*/2, share),
                                                   std::span(of_two, 9), scratch));
      return node.meetings.SumOverHolders(model::SplitOf(/*pieces=*/1, share), std::span(of_all, 2),
                                          scratch);
    });
    const float sum = rank < 2 ? 1 : 5;
    EXPECT_THAT(node.Get(of_two, 9), ElementsAre(sum, 2, 4, sum, 8, 10, 12, 14, sum));
    EXPECT_THAT(node.Get(of_all, 2), ElementsAre(4, 6));
    return status;
  });
}

TEST(TensorMeetings, OfOneRankPassNothing) {
  const auto backends = backend::CreateCpuBackends({});
  const auto backend = backends->CreateCompute().value();
  const auto meetings = TensorMeetings::Create({.backend = backend.get(),
                                                .share = {.size = 1, .leaves = 4},
                                                .rows = kRows,
                                                .columns = kColumns,
                                                .vocab = kWords})
                            .value();
  std::vector<float> rows(kRows * kColumns, 3);
  EXPECT_TRUE(meetings->GatherRows(rows.data()).ok());
  EXPECT_TRUE(meetings->ScatterRows(rows.data()).ok());
  EXPECT_EQ(rows, std::vector<float>(kRows * kColumns, 3));
  bool ran = false;
  EXPECT_TRUE(meetings
                  ->Exchange([&] {
                    ran = true;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace takt::train
