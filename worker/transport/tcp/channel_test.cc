// SPDX-License-Identifier: Apache-2.0
// Tests what the conformance suite cannot make a peer do: half messages, garbage, and waits that
// the test watches from the other end of the connection.
#include "worker/transport/tcp/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/transport/message_header.h"

namespace takt::transport {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr MessageTag kTag{.generation = 3, .step = 7, .stage = 1, .microbatch = 2};

std::vector<std::byte> Bytes(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(seed + static_cast<int>(i * 7));
  return bytes;
}

// Returns a message as it lies on the wire.
std::vector<std::byte> Wire(const MessageTag& tag, const std::vector<std::byte>& data) {
  const MessageHeader header{.tag = tag, .size_bytes = data.size()};
  const auto bytes = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> wire(bytes.begin(), bytes.end());
  wire.insert(wire.end(), data.begin(), data.end());
  return wire;
}

// One end is a channel, and the test drives the other by hand.
class TcpChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const net::Socket listening = net::ListenOn("127.0.0.1:0").value();
    const net::SocketAddress address = net::LocalAddress(listening).value();
    peer_ = net::Socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(peer_.fd(), address.get(), address.size), 0);
    pollfd waiting{listening.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, -1), 1);
    ours_ = net::Socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(ours_.valid());
  }

  TcpChannelOptions Options(absl::Duration timeout = absl::Minutes(10)) {
    return {.socket = std::move(ours_),
            .max_bytes = kMaxBytes,
            .channel = "F from rank 0",
            .operation_timeout = timeout,
            .abort = abort_};
  }
  void Say(std::span<const std::byte> bytes) {
    ASSERT_EQ(send(peer_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Leave() { const net::Socket left = std::move(peer_); }

  // Receives a message of `size` bytes that never comes.
  static absl::Status RecvInVain(RecvChannel& receiver, std::size_t size) {
    std::vector<std::byte> data(size);
    return receiver.Recv(kTag, data);
  }

  const std::shared_ptr<AbortSignal> abort_ = std::make_shared<AbortSignal>();
  net::Socket peer_, ours_;
};

TEST_F(TcpChannelTest, MessagesThatCameTogetherAreTakenApart) {
  const auto receiver = MakeTcpReceiver(Options());
  std::vector<std::byte> wire;
  for (const std::size_t size : {10, 0, 3000}) {
    const std::vector<std::byte> message = Wire(kTag, Bytes(size, 1));
    wire.insert(wire.end(), message.begin(), message.end());
  }
  Say(wire);
  for (const std::size_t size : {10, 0, 3000}) {
    std::vector<std::byte> data(size);
    const absl::Status status = receiver->Recv(kTag, data);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(data == Bytes(size, 1)) << size;
  }
}

TEST_F(TcpChannelTest, AMessageThatComesInPiecesIsPutTogether) {
  const auto receiver = MakeTcpReceiver(Options());
  const std::vector<std::byte> sent = Bytes(200'000, 5), wire = Wire(kTag, sent);
  std::vector<std::byte> data(sent.size());
  auto received = std::async(std::launch::async, [&] { return receiver->Recv(kTag, data); });
  const std::span<const std::byte> all(wire);
  Say(all.first(10));
  Say(all.subspan(10, 53));
  Say(all.subspan(63, 2));
  Say(all.subspan(65, 100'000));
  Say(all.subspan(100'065));
  const absl::Status status = received.get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(data == sent);
}

TEST_F(TcpChannelTest, WhatIsSentIsAHeaderAndTheData) {
  const auto sender = MakeTcpSender(Options());
  const std::vector<std::byte> sent = Bytes(1000, 3), expected = Wire(kTag, sent);
  ASSERT_TRUE(sender->Send(kTag, sent).ok());
  std::vector<std::byte> wire(expected.size());
  ASSERT_EQ(recv(peer_.fd(), wire.data(), wire.size(), MSG_WAITALL),
            static_cast<ssize_t>(wire.size()));
  EXPECT_TRUE(wire == expected);
}

TEST_F(TcpChannelTest, GarbageIsNoMessage) {
  const auto receiver = MakeTcpReceiver(Options());
  Say(std::vector<std::byte>(100, std::byte{'x'}));
  const absl::Status status = RecvInVain(*receiver, 36);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a message of this protocol"));
  EXPECT_EQ(RecvInVain(*receiver, 36), status) << "a broken stream must not be read on";
}

TEST_F(TcpChannelTest, AShortMessageIsRefusedWithoutWaitingForMore) {
  const auto receiver = MakeTcpReceiver(Options());
  Say(Wire(kTag, Bytes(10, 1)));
  EXPECT_EQ(RecvInVain(*receiver, kMaxBytes).code(), absl::StatusCode::kInternal);
}

TEST_F(TcpChannelTest, APeerThatLeavesInTheMiddleOfAHeaderIsReported) {
  const auto receiver = MakeTcpReceiver(Options());
  Say(std::span<const std::byte>(Wire(kTag, {})).first(63));
  Leave();
  EXPECT_EQ(RecvInVain(*receiver, 0).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TcpChannelTest, APeerThatLeavesInTheMiddleOfAMessageIsReported) {
  const auto receiver = MakeTcpReceiver(Options());
  Say(std::span<const std::byte>(Wire(kTag, Bytes(1000, 1))).first(999));
  Leave();
  const absl::Status status = RecvInVain(*receiver, 1000);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("F from rank 0: the peer left"));
}

TEST_F(TcpChannelTest, ASenderThatWaitsLearnsThatThePeerLeft) {
  const auto sender = MakeTcpSender(Options());
  auto sent = std::async(std::launch::async, [&] {
    const std::vector<std::byte> data(kMaxBytes);
    absl::Status status;
    while ((status = sender->Send(kTag, data)).ok()) {
    }
    return status;
  });
  // The sender is at work. Whether it waits already or will, the end of the peer must end it.
  std::byte first;
  ASSERT_EQ(recv(peer_.fd(), &first, 1, 0), 1);
  Leave();
  EXPECT_EQ(sent.get().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TcpChannelTest, AnAbortIsNotToldToThePeer) {
  auto receiver = MakeTcpReceiver(Options());
  auto received = std::async(std::launch::async, [&] { return RecvInVain(*receiver, 10); });
  abort_->Raise();
  EXPECT_EQ(received.get().code(), absl::StatusCode::kAborted);
  std::byte byte;
  EXPECT_EQ(recv(peer_.fd(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  receiver.reset();
  EXPECT_EQ(recv(peer_.fd(), &byte, 1, 0), 0);
}

TEST_F(TcpChannelTest, APeerThatSendsByteByByteDoesNotProlongAReceive) {
  const auto receiver = MakeTcpReceiver(Options(absl::Milliseconds(100)));
  auto received = std::async(std::launch::async, [&] { return RecvInVain(*receiver, kMaxBytes); });
  // One byte each ten milliseconds makes a header in 640.
  for (const std::byte byte : Wire(kTag, {})) {
    if (received.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready) break;
    Say(std::span(&byte, 1));
  }
  EXPECT_EQ(received.get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(TcpChannelTest, ATransportThatWasAbortedSendsNothing) {
  abort_->Raise();
  const auto sender = MakeTcpSender(Options());
  EXPECT_EQ(sender->Send(kTag, Bytes(10, 1)).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace takt::transport
