// SPDX-License-Identifier: Apache-2.0
// Runs on devices that do nothing before somebody waits for them.
#include "worker/transport/ipc/ipc_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/testing/device_floats.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/backend/peer_memory.h"
#include "worker/transport/staged/staged.h"

namespace takt::transport::ipc {
namespace {

using backend::PeerMemory;
using backend::StreamKind;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kFloats = 1000, kBytes = kFloats * sizeof(float);

std::span<std::byte> BytesOf(const backend::Buffer& buffer) {
  return {buffer.data(), buffer.bytes()};
}

// A device whose memory is reached in a way of its own.
class WithPeers final : public backend::BackendFactory {
 public:
  WithPeers(std::unique_ptr<BackendFactory> inner, std::unique_ptr<PeerMemory> peers)
      : inner_(std::move(inner)), peers_(std::move(peers)) {}
  absl::StatusOr<std::unique_ptr<backend::Backend>> CreateCompute() override {
    return inner_->CreateCompute();
  }
  absl::StatusOr<std::unique_ptr<backend::MemoryBackend>> CreateMemory(StreamKind kind) override {
    return inner_->CreateMemory(kind);
  }
  bool memory_is_host() const override { return inner_->memory_is_host(); }
  PeerMemory* peer_memory() override { return peers_.get(); }

 private:
  const std::unique_ptr<BackendFactory> inner_;
  const std::unique_ptr<PeerMemory> peers_;
};

// Opens all memory and copies nothing, as where the bus between two devices is broken.
class BrokenPeers final : public PeerMemory {
 public:
  absl::StatusOr<std::vector<backend::SharedRegion>> Share() override {
    return std::vector<backend::SharedRegion>();
  }
  absl::StatusOr<const std::byte*> Open(const std::string& /*handle*/) override { return &base_; }
  void Close(const std::byte* /*base*/) override {}
  absl::Status Copy(const std::byte* /*from*/, std::span<std::byte> /*to*/,
                    backend::Stream& /*stream*/) override {
    return absl::OkStatus();
  }

 private:
  const std::byte base_{};
};

// Whatever is asked of it, it has no access.
class NoAccess final : public PeerMemory {
 public:
  absl::StatusOr<std::vector<backend::SharedRegion>> Share() override { return Refusal(); }
  absl::StatusOr<const std::byte*> Open(const std::string& /*handle*/) override {
    return Refusal();
  }
  void Close(const std::byte* /*base*/) override {}
  absl::Status Copy(const std::byte* /*from*/, std::span<std::byte> /*to*/,
                    backend::Stream& /*stream*/) override {
    return Refusal();
  }

 private:
  static absl::Status Refusal() { return absl::FailedPreconditionError("no peer access"); }
};

// A rank with a device of its own. Its copies from other devices are counted.
class Node {
 public:
  struct Options {
    bool shares = true;
    std::unique_ptr<PeerMemory> peers = nullptr;  // in place of the device's own
    absl::Duration close_timeout = absl::Seconds(60);
  };
  Node(testing::InprocHub& hub, int rank) : Node(hub, rank, Options()) {}
  Node(testing::InprocHub& hub, int rank, Options options)
      : device_(backend::CreateDiscreteBackends(
            {.lazy = true,
             .shared_bytes = options.shares ? std::size_t{1} << 20 : 0,
             .peer_copies = &copies_})) {
    if (options.peers != nullptr)
      device_ = std::make_unique<WithPeers>(std::move(device_), std::move(options.peers));
    backend_ = device_->CreateCompute().value();
    const TransportOptions transport{.rank = Rank(rank), .num_ranks = 2, .job = "test"};
    host_ = hub.Connect(transport);
    transport_ =
        CreateIpcTransport({.transport = transport,
                            .close_timeout = options.close_timeout,
                            .on_stuck = [this](const std::string& reason) { stuck_ = reason; }},
                           *host_, StageTransport(*host_, *device_), *device_);
  }

  DeviceTransport& transport() { return *transport_; }
  backend::BackendFactory& device() { return *device_; }
  int copies() const { return static_cast<int>(copies_.load()); }
  const std::string& stuck() const { return stuck_; }

  backend::Buffer Allocate() { return backend_->Allocate(kBytes, MemoryKind::kMessages).value(); }
  void Fill(const backend::Buffer& buffer, float value) {
    testing::FillFloats(*backend_, buffer, value);
  }
  std::vector<float> Read(const backend::Buffer& buffer) {
    return testing::ReadFloats(*backend_, buffer);
  }
  backend::Stream& stream() { return *backend_->stream(); }

 private:
  std::atomic<std::int64_t> copies_ = 0;
  std::string stuck_;
  std::unique_ptr<backend::BackendFactory> device_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<Transport> host_;
  std::unique_ptr<DeviceTransport> transport_;
};

struct Link {
  std::unique_ptr<SendChannel> send;
  std::unique_ptr<RecvChannel> recv;
};

// Opens a channel from rank 0 to rank 1.
Link Open(Node& sender, Node& receiver) {
  Link link;
  std::thread sending([&] {
    absl::StatusOr<std::unique_ptr<SendChannel>> send =
        sender.transport().OpenSend(Rank(1), "F", kBytes);
    EXPECT_TRUE(send.ok()) << send.status();
    if (send.ok()) link.send = *std::move(send);
  });
  absl::StatusOr<std::unique_ptr<RecvChannel>> recv =
      receiver.transport().OpenRecv(Rank(0), "F", kBytes);
  sending.join();
  EXPECT_TRUE(recv.ok()) << recv.status();
  if (recv.ok()) link.recv = *std::move(recv);
  return link;
}

// Passes messages and returns how many copies between devices the receiver made for them.
int Pass(Node& sender, Node& receiver) {
  constexpr int kMessages = 5;
  const Link link = Open(sender, receiver);
  const int before = receiver.copies();
  std::thread sending([&] {
    const backend::Buffer buffer = sender.Allocate();
    for (int m = 0; m < kMessages; ++m) {
      sender.Fill(buffer, static_cast<float>(m));
      const absl::Status sent = link.send->Send({.microbatch = m}, BytesOf(buffer));
      EXPECT_TRUE(sent.ok()) << sent;
    }
  });
  std::vector<backend::Buffer> buffers;
  for (int m = 0; m < kMessages; ++m) {
    buffers.push_back(receiver.Allocate());
    const absl::Status came = link.recv->Recv({.microbatch = m}, BytesOf(buffers.back()));
    EXPECT_TRUE(came.ok()) << came;
  }
  const auto arrived = link.recv->stream()->CreateEvent().value();
  EXPECT_TRUE(link.recv->stream()->Record(*arrived).ok());
  EXPECT_TRUE(receiver.stream().Await(*arrived).ok());
  for (int m = 0; m < kMessages; ++m)
    EXPECT_THAT(receiver.Read(buffers[static_cast<std::size_t>(m)]), Each(static_cast<float>(m)));
  sending.join();
  EXPECT_EQ(sender.copies(), 0);
  return receiver.copies() - before;
}

TEST(IpcTransport, TheReceiversDeviceCopiesEachMessageOnce) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  EXPECT_EQ(Pass(sender, receiver), 5);
}

TEST(IpcTransport, PairsThatShareNoMemoryGoAnotherWay) {
  for (const bool sender_shares : {false, true}) {
    testing::InprocHub hub;
    Node sender(hub, 0, {.shares = sender_shares}), receiver(hub, 1, {.shares = !sender_shares});
    EXPECT_EQ(Pass(sender, receiver), 0);
  }
}

TEST(IpcTransport, PairsWithoutAccessGoAnotherWay) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1, {.peers = std::make_unique<NoAccess>()});
  EXPECT_EQ(Pass(sender, receiver), 0);
  testing::InprocHub other_hub;
  Node other_sender(other_hub, 0, {.peers = std::make_unique<NoAccess>()}),
      other_receiver(other_hub, 1);
  EXPECT_EQ(Pass(other_sender, other_receiver), 0);
}

TEST(IpcTransport, PairsBetweenWhichBytesChangeGoAnotherWay) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1, {.peers = std::make_unique<BrokenPeers>()});
  EXPECT_EQ(Pass(sender, receiver), 0);
}

TEST(IpcTransport, ASenderThatEndsDoesNotWaitForAReceiverThatIsBusyElsewhere) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  Link link = Open(sender, receiver);
  const absl::Time start = absl::Now();
  link.send.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  EXPECT_EQ(sender.stuck(), "");
  const backend::Buffer buffer = receiver.Allocate();
  EXPECT_EQ(link.recv->Recv({}, BytesOf(buffer)).code(), absl::StatusCode::kUnavailable);
}

TEST(IpcTransport, AMessageOutsideTheAnnouncedMemoryIsRefused) {
  testing::InprocHub hub;
  Node sender(hub, 0), receiver(hub, 1);
  const Link link = Open(sender, receiver);
  const std::vector<std::byte> host(kBytes);
  const absl::Status status = link.send->Send({}, host);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("F to rank 1"));
}

// The receiver's device hangs, so it cannot close the memory. The sender says so.
TEST(IpcTransport, ASenderTellsOfMemoryThatAHangingDeviceHasOpen) {
  absl::Notification goes_on;  // outlives the work of the device
  testing::InprocHub hub;
  Node sender(hub, 0, {.close_timeout = absl::Milliseconds(50)}), receiver(hub, 1);
  Link link = Open(sender, receiver);
  const backend::Buffer source = sender.Allocate(), target = receiver.Allocate();
  static_cast<backend::TaskStream*>(link.recv->stream()->native())->Push([&] {
    goes_on.WaitForNotification();
    return absl::OkStatus();
  });
  absl::Status sent;
  std::thread sending([&] { sent = link.send->Send({}, BytesOf(source)); });
  EXPECT_TRUE(link.recv->Recv({}, BytesOf(target)).ok());
  receiver.transport().Abort();
  sender.transport().Abort();
  sending.join();
  EXPECT_EQ(sent.code(), absl::StatusCode::kAborted) << sent;
  link.send.reset();
  EXPECT_THAT(sender.stuck(), HasSubstr("the peer still has the memory of this device open"));
  goes_on.Notify();
}

}  // namespace
}  // namespace takt::transport::ipc
