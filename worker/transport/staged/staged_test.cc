// SPDX-License-Identifier: Apache-2.0
// Runs on devices that do nothing before the host waits for them.
#include "worker/transport/staged/staged.h"
#include "worker/backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/direct_ranks.h"
#include "tests/testing/device_floats.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/transport/channel_collective.h"

namespace takt::transport {
namespace {

using backend::StreamKind;

constexpr std::size_t kFloats = 1000;

std::unique_ptr<Transport> Connect(testing::InprocHub& hub, int rank) {
  TransportOptions options;
  options.rank = Rank(rank);
  options.num_ranks = kMostDirectRanks + 1;
  return hub.Connect(options);
}

std::unique_ptr<backend::BackendFactory> LazyDevice() {
  return backend::CreateDiscreteBackends({.lazy = true});
}

// A rank with a device of its own.
class Node {
 public:
  Node(testing::InprocHub& hub, int rank)
      : transport_(Connect(hub, rank)), staged_(StageTransport(*transport_, *device_)) {}

  Transport& host() { return *transport_; }
  DeviceTransport& staged() { return *staged_; }
  backend::BackendFactory& device() { return *device_; }

  backend::Buffer Allocate() {
    return backend_->Allocate(kFloats * sizeof(float), MemoryKind::kMessages).value();
  }
  void Fill(const backend::Buffer& buffer, float value) {
    testing::FillFloats(*backend_, buffer, value);
  }
  std::vector<float> Read(const backend::Buffer& buffer) {
    return testing::ReadFloats(*backend_, buffer);
  }
  backend::Stream& stream() { return *backend_->stream(); }

 private:
  const std::unique_ptr<backend::BackendFactory> device_ = LazyDevice();
  const std::unique_ptr<backend::Backend> backend_ = device_->CreateCompute().value();
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<DeviceTransport> staged_;
};

std::span<std::byte> BytesOf(const backend::Buffer& buffer) {
  return {buffer.data(), buffer.bytes()};
}

TEST(StagedTransport, MessagesArriveOnTheReceiversStream) {
  constexpr int kMessages = 5;  // each buffer is used again
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  std::thread sending([&] {
    const auto channel = sender.staged().OpenSend(Rank(1), "F", kFloats * sizeof(float)).value();
    const backend::Buffer buffer = sender.Allocate();
    for (int m = 0; m < kMessages; ++m) {
      sender.Fill(buffer, static_cast<float>(m));
      EXPECT_TRUE(channel->Send({.microbatch = m}, BytesOf(buffer)).ok());
    }
  });
  const auto channel = receiver.staged().OpenRecv(Rank(0), "F", kFloats * sizeof(float)).value();
  ASSERT_NE(channel->stream(), nullptr);
  const std::unique_ptr<backend::Event> arrived = channel->stream()->CreateEvent().value();
  std::vector<backend::Buffer> buffers;
  for (int m = 0; m < kMessages; ++m) {
    buffers.push_back(receiver.Allocate());
    EXPECT_TRUE(channel->Recv({.microbatch = m}, BytesOf(buffers.back())).ok());
  }
  ASSERT_TRUE(channel->stream()->Record(*arrived).ok());
  ASSERT_TRUE(receiver.stream().Await(*arrived).ok());
  for (int m = 0; m < kMessages; ++m) {
    EXPECT_EQ(receiver.Read(buffers[static_cast<std::size_t>(m)]),
              std::vector<float>(kFloats, static_cast<float>(m)));
  }
  sending.join();
}

TEST(StagedTransport, AnAbortEndsAReceive) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  std::unique_ptr<SendChannel> other_end;
  std::thread opening(
      [&] { other_end = sender.staged().OpenSend(Rank(1), "F", kFloats * sizeof(float)).value(); });
  const auto channel = receiver.staged().OpenRecv(Rank(0), "F", kFloats * sizeof(float)).value();
  opening.join();
  std::thread aborting([&] { receiver.staged().Abort(); });
  const backend::Buffer buffer = receiver.Allocate();
  EXPECT_EQ(channel->Recv({}, BytesOf(buffer)).code(), absl::StatusCode::kAborted);
  aborting.join();
}

TEST(StagedTransport, AnAbortEndsAReceiveWhoseDeviceHangs) {
  absl::Notification hangs, goes_on;  // outlive the work of the device
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  std::thread sending([&] {
    const backend::Buffer buffer = sender.Allocate();
    const auto channel = sender.staged().OpenSend(Rank(1), "F", kFloats * sizeof(float)).value();
    for (int m = 0; channel->Send({.microbatch = m}, BytesOf(buffer)).ok(); ++m) {
    }
  });
  const backend::Buffer buffer = receiver.Allocate();
  const auto channel = receiver.staged().OpenRecv(Rank(0), "F", kFloats * sizeof(float)).value();
  static_cast<backend::TaskStream*>(channel->stream()->native())->Push([&] {
    hangs.Notify();
    goes_on.WaitForNotification();
    return absl::OkStatus();
  });
  std::thread aborting([&] {
    hangs.WaitForNotification();  // a thread waits for a buffer that the device keeps
    receiver.staged().Abort();
    sender.staged().Abort();
  });
  absl::Status status;
  for (int m = 0; status.ok(); ++m) status = channel->Recv({.microbatch = m}, BytesOf(buffer));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  aborting.join();
  sending.join();
  goes_on.Notify();
}

TEST(StagedCollective, SumsTheMemoryOfDevices) {
  testing::InprocHub hub;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int rank = 0; rank < 2; ++rank) nodes.push_back(std::make_unique<Node>(hub, rank));
  const auto sum = [&](int rank) {
    Node& node = *nodes[static_cast<std::size_t>(rank)];
    const auto group =
        node.staged().OpenSums({.name = "sum", .ranks = {Rank(0), Rank(1)}, .index = rank}).value();
    EXPECT_EQ(group->size(), 2);
    const backend::Buffer buffer = node.Allocate();
    node.Fill(buffer, static_cast<float>(1 + rank));
    EXPECT_TRUE(group->AllReduceSum(StepId(1), buffer.float_span()).ok());
    EXPECT_EQ(node.Read(buffer), std::vector<float>(kFloats, 3));
    // Two terms of half of the values each.
    const Collective::Terms terms{.count = 2, .stride = kFloats / 2};
    const std::span<float> half = buffer.float_span().first(kFloats / 2);
    node.Fill(buffer, static_cast<float>(1 + rank));
    EXPECT_TRUE(group->AllReduceTerms(StepId(1), half, terms).ok());
    EXPECT_EQ(node.Read(buffer)[0], 6);
    EXPECT_EQ(node.Read(buffer)[kFloats - 1], 1 + rank);
    double host = 1 + rank;
    EXPECT_TRUE(group->AllReduceSum(StepId(1), std::span<double>(&host, 1)).ok());
    EXPECT_EQ(host, 3);
  };
  std::thread other([&] { sum(1); });
  sum(0);
  other.join();
}

TEST(StagedCollective, SumsAndGathersPartsOfTheMemoryOfDevices) {
  testing::InprocHub hub;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int rank = 0; rank < 2; ++rank) nodes.push_back(std::make_unique<Node>(hub, rank));
  const auto share = [&](int rank) {
    Node& node = *nodes[static_cast<std::size_t>(rank)];
    const auto group =
        node.staged().OpenSums({.name = "sum", .ranks = {Rank(0), Rank(1)}, .index = rank}).value();
    const backend::Buffer buffer = node.Allocate();
    node.Fill(buffer, static_cast<float>(1 + rank));
    const std::span<float> all = buffer.float_span().first(kFloats);
    const std::vector<std::span<float>> parts = {all.first(300), all.subspan(300)};
    EXPECT_TRUE(group->ReduceScatterSum(StepId(1), parts).ok());
    // The rank's own part has the sum.
    EXPECT_EQ(node.Read(buffer)[rank == 0 ? 0 : 300], 3);
    EXPECT_TRUE(group->AllGatherParts(StepId(1), parts).ok());
    EXPECT_EQ(node.Read(buffer), std::vector<float>(kFloats, 3));
    const std::vector<std::span<float>> halves = {all.first(100), all.subspan(100, 300)};
    EXPECT_TRUE(
        group->ReduceScatterTerms(StepId(1), halves, {.count = 2, .stride = kFloats / 2}).ok());
    EXPECT_EQ(node.Read(buffer)[rank == 0 ? 0 : 100], 12);
    node.Fill(buffer, 3);
    EXPECT_EQ(node.Read(buffer), std::vector<float>(kFloats, 3));
  };
  std::thread other([&] { share(1); });
  share(0);
  other.join();
}

TEST(StagedCollective, SumsAndGathersInALargeGroup) {
  constexpr int kRanks = kMostDirectRanks + 1;
  testing::InprocHub hub;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Rank> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    nodes.push_back(std::make_unique<Node>(hub, rank));
    ranks.push_back(Rank(rank));
  }
  const auto share = [&](int rank) {
    Node& node = *nodes[static_cast<std::size_t>(rank)];
    const auto group =
        node.staged()
            .OpenSums(
                {.name = "g", .ranks = ranks, .index = rank, .large_group = LargeGroup::kRing})
            .value();
    const backend::Buffer buffer = node.Allocate();
    node.Fill(buffer, static_cast<float>(1 + rank));
    std::vector<std::span<float>> parts(kRanks, buffer.float_span().first(0));
    parts[2] = buffer.float_span().first(300);
    parts[kRanks - 1] = buffer.float_span().subspan(300, kFloats - 300);
    constexpr float kSum = kRanks * (kRanks + 1) / 2;
    EXPECT_TRUE(group->ReduceScatterSum(StepId(1), parts).ok());
    EXPECT_TRUE(group->AllGatherParts(StepId(1), parts).ok());
    std::vector<float> expected(kFloats, kSum);
    EXPECT_EQ(node.Read(buffer), expected) << "rank " << rank;
    node.Fill(buffer, static_cast<float>(1 + rank));
    // Rank 2 takes a value of each other one.
    const std::span<std::byte> all = std::as_writable_bytes(buffer.float_span());
    std::vector<std::span<std::byte>> from;
    for (std::size_t i = 0; rank == 2 && i < kRanks; ++i) from.push_back(all.subspan(4 * i, 4));
    EXPECT_TRUE(group->SendTo(StepId(1), 2, all.last(4), from).ok());
    expected.assign(kFloats, static_cast<float>(1 + rank));
    for (int i = 0; rank == 2 && i < kRanks; ++i) expected[i] = static_cast<float>(1 + i);
    EXPECT_EQ(node.Read(buffer), expected) << "rank " << rank;
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < kRanks; ++rank) others.emplace_back([&share, rank] { share(rank); });
  share(0);
}

TEST(StagedCollective, PassesBytesOfTheMemoryOfDevices) {
  constexpr int kRanks = 3;
  testing::InprocHub hub;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int rank = 0; rank < kRanks; ++rank) nodes.push_back(std::make_unique<Node>(hub, rank));
  const auto share = [&](int rank) {
    Node& node = *nodes[static_cast<std::size_t>(rank)];
    const auto group =
        node.staged()
            .OpenSums({.name = "g", .ranks = {Rank(0), Rank(1), Rank(2)}, .index = rank})
            .value();
    const backend::Buffer buffer = node.Allocate();
    node.Fill(buffer, static_cast<float>(1 + rank));
    const std::span<std::byte> all = std::as_writable_bytes(buffer.float_span().first(kFloats));
    constexpr std::size_t kFirst = 8, kLast = 4000 - kFirst;  // rank 1 has nothing to give
    const std::vector<std::span<std::byte>> parts = {all.first(kFirst), all.subspan(kFirst, 0),
                                                     all.subspan(kFirst, kLast)};
    EXPECT_TRUE(group->AllGather(StepId(1), parts).ok());
    std::vector<float> expected(kFloats, 3);
    expected[0] = expected[1] = 1;
    EXPECT_EQ(node.Read(buffer), expected) << "rank " << rank;
    // Rank 0 takes a value of each other one.
    const std::vector<std::span<std::byte>> from = {{}, all.first(4), all.subspan(4, 4)};
    EXPECT_TRUE(group
                    ->SendTo(StepId(1), 0, all.last(4),
                             rank == 0 ? Collective::Received(from) : Collective::Received())
                    .ok());
    if (rank == 0) expected[0] = expected[1] = 3;
    EXPECT_EQ(node.Read(buffer), expected) << "rank " << rank;
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < kRanks; ++rank) others.emplace_back([&share, rank] { share(rank); });
  share(0);
}

TEST(Staged, HostMemoryNeedsNone) {
  testing::InprocHub hub;
  const auto transport = Connect(hub, 0);
  const auto backends = backend::CreateCpuBackends({});
  EXPECT_EQ(StageTransport(*transport, *backends), nullptr);
}

}  // namespace
}  // namespace takt::transport
