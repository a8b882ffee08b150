// SPDX-License-Identifier: Apache-2.0
// What every transport must do. Ranks are threads here; transport_process_test.cc has those cases
// that need processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/conformance/transport_kinds.h"

namespace takt::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::MessageTag;
using transport::RecvChannel;
using transport::SendChannel;
using transport::Transport;
using transport::TransportOptions;

constexpr std::size_t kMaxBytes = 4 * 1024 * 1024;

std::vector<std::byte> Bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

MessageTag Tag(std::int32_t microbatch) {
  return {.generation = 3, .step = 1, .stage = 2, .microbatch = microbatch, .direction = 1};
}

class TransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Ranks 0 and 1.
  void Connect(TransportOptions options0 = LoopbackOptions(0),
               TransportOptions options1 = LoopbackOptions(1)) {
    group_ = MakeGroup(GetParam());
    for (const TransportOptions& options : {options0, options1}) {
      absl::StatusOr<std::unique_ptr<Transport>> transport = group_->Connect(options);
      ASSERT_TRUE(transport.ok()) << transport.status();
      rank_[options.rank.value()] = *std::move(transport);
    }
  }

  // Both ends of a channel from rank 0 to rank 1, or the other way.
  struct Link {
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> recv;
  };
  Link Open(const std::string& name, std::size_t max_bytes, int from = 0) {
    Link link;
    std::thread sender([&] { link.send = OpenSend(from, name, max_bytes); });
    absl::StatusOr<std::unique_ptr<RecvChannel>> recv =
        rank_[1 - from]->OpenRecv(Rank(from), name, max_bytes);
    sender.join();
    EXPECT_TRUE(recv.ok()) << recv.status();
    if (recv.ok()) link.recv = *std::move(recv);
    return link;
  }
  std::unique_ptr<SendChannel> OpenSend(int from, const std::string& name, std::size_t max_bytes) {
    absl::StatusOr<std::unique_ptr<SendChannel>> send =
        rank_[from]->OpenSend(Rank(1 - from), name, max_bytes);
    EXPECT_TRUE(send.ok()) << send.status();
    return send.ok() ? *std::move(send) : nullptr;
  }

  std::unique_ptr<TransportGroup> group_;
  std::unique_ptr<Transport> rank_[2];
};

// NCCL looks at no message: it carries what the verified program says, and a peer that leaves is
// the control plane's to notice.
class TaggedTransportTest : public TransportTest {};

// Where a message may lie in a buffer of the transport, so that Send returns before Recv is called.
class HostTransportTest : public TransportTest {};

TEST_P(TransportTest, MessagesOfAnySizeArriveWholeAndInOrder) {
  Connect();
  Link link = Open("F", kMaxBytes);
  const std::vector<std::size_t> sizes = {
      0,     1,      63,      64,      65,      4096,      65535, 65536, 65537,        65600,
      99999, 262144, 1 << 20, 1048577, 3145731, kMaxBytes, 7,     0,     kMaxBytes - 1};
  std::thread sender([&] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const absl::Status status = link.send->Send(Tag(i), Bytes(sizes[i], i));
      ASSERT_TRUE(status.ok()) << status;
    }
  });
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> data(sizes[i]);
    const absl::Status status = link.recv->Recv(Tag(i), data);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(data == Bytes(sizes[i], i)) << "message " << i << " of " << sizes[i] << " bytes";
  }
  sender.join();
}

TEST_P(TransportTest, ManySmallMessagesKeepTheirOrder) {
  Connect();
  Link link = Open("F", 1000);
  constexpr int kMessages = 1000;
  std::thread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(link.send->Send(Tag(i), Bytes(i % 1001, i)).ok());
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    std::vector<std::byte> data(i % 1001);
    ASSERT_TRUE(link.recv->Recv(Tag(i), data).ok());
    ASSERT_TRUE(data == Bytes(i % 1001, i)) << i;
  }
  sender.join();
}

TEST_P(TransportTest, BothDirectionsAndManyChannelsDoNotWaitForOneAnother) {
  Connect();
  constexpr int kChannels = 6;
  constexpr int kMessages = 20;
  constexpr std::size_t kBytes = 300'001;
  std::vector<Link> links;
  for (int c = 0; c < kChannels; ++c) links.push_back(Open(absl::StrCat("c", c), kBytes, c % 2));
  std::vector<std::thread> threads;
  for (int c = 0; c < kChannels; ++c) {
    threads.emplace_back([&, c] {
      for (int i = 0; i < kMessages; ++i) {
        ASSERT_TRUE(links[c].send->Send(Tag(i), Bytes(kBytes, c * 100 + i)).ok());
      }
    });
  }
  // The last channel is drained first: what waits on the others must not hold it up.
  for (int c = kChannels - 1; c >= 0; --c) {
    for (int i = 0; i < kMessages; ++i) {
      std::vector<std::byte> data(kBytes);
      ASSERT_TRUE(links[c].recv->Recv(Tag(i), data).ok());
      ASSERT_TRUE(data == Bytes(kBytes, c * 100 + i)) << c << " " << i;
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(TaggedTransportTest, AnUnexpectedTagIsRefusedWithBothTagsNamed) {
  for (const std::size_t size : {16u, 300'000u}) {
    Connect();
    Link link = Open("F", 300'000);
    std::thread sender([&] { static_cast<void>(link.send->Send(Tag(4), Bytes(size, 1))); });
    std::vector<std::byte> data(size);
    const absl::Status status = link.recv->Recv(Tag(5), data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("microbatch 4 "), HasSubstr("microbatch 5 "),
                      HasSubstr("channel F"), HasSubstr(" from rank 0")));
    EXPECT_FALSE(link.recv->Recv(Tag(4), data).ok()) << "a refused message must not be taken later";
    rank_[0]->Abort();
    sender.join();
  }
}

TEST_P(TaggedTransportTest, AnUnexpectedSizeIsRefusedWithBothSizesNamed) {
  const std::pair<std::size_t, std::size_t> sent_and_expected[] = {
      {10, 11}, {100'000, 10}, {10, 100'000}, {100'000, 200'000}, {200'000, 100'000}};
  for (const auto& [sent, expected] : sent_and_expected) {
    Connect();
    Link link = Open("F", 200'000);
    std::thread sender(
        [&, sent = sent] { static_cast<void>(link.send->Send(Tag(0), Bytes(sent, 1))); });
    std::vector<std::byte> data(expected);
    const absl::Status status = link.recv->Recv(Tag(0), data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(absl::StrCat(sent, " bytes")),
                                                     HasSubstr(absl::StrCat(expected, " bytes"))));
    rank_[0]->Abort();
    sender.join();
  }
}

TEST_P(TransportTest, AMessageLargerThanAgreedIsNotSent) {
  Connect();
  Link link = Open("F", 1000);
  EXPECT_EQ(link.send->Send(Tag(0), Bytes(1001, 0)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportTest, AbortEndsABlockedReceive) {
  Connect();
  Link link = Open("F", 1000);
  absl::Status status;
  std::thread receiver([&] {
    std::vector<std::byte> data(10);
    status = link.recv->Recv(Tag(0), data);
  });
  const absl::Time start = absl::Now();
  rank_[1]->Abort();
  receiver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  std::vector<std::byte> data(10);
  EXPECT_EQ(link.recv->Recv(Tag(0), data).code(), absl::StatusCode::kAborted);
  rank_[1]->Abort();  // again: nothing happens
}

TEST_P(TransportTest, AbortEndsABlockedSend) {
  Connect();
  Link link = Open("F", kMaxBytes);
  std::atomic<int> sent{0};
  absl::Status status;
  std::thread sender([&] {
    const std::vector<std::byte> data = Bytes(kMaxBytes, 1);
    // Nobody takes them: sooner or later, whatever the transport's buffers, a send waits.
    for (; (status = link.send->Send(Tag(sent), data)).ok(); ++sent) {
    }
  });
  // Whether it waits already or will: the abort must end it.
  for (int before = -1; before != sent; std::this_thread::yield()) before = sent;
  const absl::Time start = absl::Now();
  rank_[0]->Abort();
  sender.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(link.send->Send(Tag(0), Bytes(1, 1)).code(), absl::StatusCode::kAborted);
}

TEST_P(TransportTest, AbortEndsABlockedOpening) {
  Connect();
  absl::Status send_status, recv_status;
  std::thread sender([&] { send_status = rank_[0]->OpenSend(Rank(1), "F", 10).status(); });
  std::thread receiver([&] { recv_status = rank_[0]->OpenRecv(Rank(1), "B", 10).status(); });
  const absl::Time start = absl::Now();
  rank_[0]->Abort();
  sender.join();
  receiver.join();
  EXPECT_EQ(send_status.code(), absl::StatusCode::kAborted) << send_status;
  EXPECT_EQ(recv_status.code(), absl::StatusCode::kAborted) << recv_status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(rank_[0]->OpenSend(Rank(1), "G", 10).status().code(), absl::StatusCode::kAborted);
}

TEST_P(TransportTest, AnOpeningWhosePeerDoesNotComeEndsAtItsTimeout) {
  TransportOptions options = LoopbackOptions(0);
  options.connect_timeout = absl::Milliseconds(50);
  Connect(options);
  EXPECT_EQ(rank_[0]->OpenSend(Rank(1), "F", 10).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rank_[0]->OpenRecv(Rank(1), "B", 10).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportTest, AReceiveEndsAtTheOperationTimeout) {
  TransportOptions options = LoopbackOptions(1);
  options.operation_timeout = absl::Milliseconds(50);
  Connect(LoopbackOptions(0), options);
  Link link = Open("F", 1000);
  std::vector<std::byte> data(10);
  const absl::Time start = absl::Now();
  EXPECT_EQ(link.recv->Recv(Tag(0), data).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(49));
}

TEST_P(TransportTest, ASendEndsAtTheOperationTimeout) {
  TransportOptions options = LoopbackOptions(0);
  options.operation_timeout = absl::Milliseconds(50);
  Connect(options);
  Link link = Open("F", kMaxBytes);
  const std::vector<std::byte> data = Bytes(kMaxBytes, 1);
  absl::Status status;
  while ((status = link.send->Send(Tag(0), data)).ok()) {
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_P(HostTransportTest, WhatWasSentBeforeTheSenderLeftIsStillReceived) {
  Connect();
  Link link = Open("F", 1000);
  ASSERT_TRUE(link.send->Send(Tag(0), Bytes(1000, 5)).ok());
  link.send.reset();
  rank_[0].reset();
  std::vector<std::byte> data(1000);
  const absl::Status status = link.recv->Recv(Tag(0), data);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(data == Bytes(1000, 5));
}

TEST_P(TaggedTransportTest, APeerThatLeftIsReported) {
  Connect();
  Link to = Open("F", 1000), from = Open("B", 1000, 1);
  to.send.reset();
  from.recv.reset();
  rank_[0].reset();
  std::vector<std::byte> data(10);
  EXPECT_EQ(to.recv->Recv(Tag(0), data).code(), absl::StatusCode::kUnavailable);
  absl::Status status;
  while ((status = from.send->Send(Tag(0), data)).ok()) {
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportTest, ChannelsWhoseEndsDisagreeOnTheLargestMessageDoNotOpen) {
  TransportOptions options0 = LoopbackOptions(0), options1 = LoopbackOptions(1);
  options0.connect_timeout = options1.connect_timeout = absl::Seconds(1);
  Connect(options0, options1);
  absl::Status send_status;
  std::thread sender([&] { send_status = rank_[0]->OpenSend(Rank(1), "F", 2000).status(); });
  const absl::Status recv_status = rank_[1]->OpenRecv(Rank(0), "F", 1000).status();
  sender.join();
  EXPECT_FALSE(send_status.ok() && recv_status.ok());
  const absl::Status& refusal = absl::IsInvalidArgument(recv_status) ? recv_status : send_status;
  EXPECT_THAT(std::string(refusal.message()), AllOf(HasSubstr("2000"), HasSubstr("1000")));
}

// Threads of one process have no secrets.
class TransportSecretTest : public TransportTest {
 protected:
  void ExpectRefused(TransportOptions options1) {
    TransportOptions options0 = LoopbackOptions(0);
    options0.connect_timeout = options1.connect_timeout = absl::Seconds(2);
    Connect(options0, options1);
    absl::Status send_status;
    std::thread sender([&] { send_status = rank_[0]->OpenSend(Rank(1), "F", 10).status(); });
    const absl::Status recv_status = rank_[1]->OpenRecv(Rank(0), "F", 10).status();
    sender.join();
    EXPECT_FALSE(recv_status.ok());
    // Who listens waits on for the rank that it expects, and says who came instead.
    EXPECT_EQ(send_status.code(), absl::StatusCode::kDeadlineExceeded) << send_status;
    EXPECT_THAT(std::string(send_status.message()),
                HasSubstr("does not know this generation's secret"));
  }
};

TEST_P(TransportSecretTest, APeerWithoutTheGenerationsSecretIsRefused) {
  TransportOptions stranger = LoopbackOptions(1);
  stranger.secret[0] = '?';
  ExpectRefused(stranger);
}

TEST_P(TransportSecretTest, APeerOfAnOlderGenerationIsRefused) {
  TransportOptions older = LoopbackOptions(1);
  --older.generation;
  ExpectRefused(older);
}

// Where the ranks do not agree on a transport first.
class TransportStrangerTest : public TransportTest {};

TEST_P(TransportStrangerTest, AStrangerWhoCameFirstKeepsThePeerNotOut) {
  Connect();
  TransportOptions options = LoopbackOptions(1);
  options.secret[0] = '?';
  options.connect_timeout = absl::Milliseconds(200);
  const std::unique_ptr<Transport> stranger = group_->Connect(options).value();
  absl::Status refused;
  std::unique_ptr<RecvChannel> recv;
  std::thread receivers([&] {
    refused = stranger->OpenRecv(Rank(0), "F", 10).status();
    recv = rank_[1]->OpenRecv(Rank(0), "F", 10).value();
  });
  const std::unique_ptr<SendChannel> send = OpenSend(0, "F", 10);
  receivers.join();
  EXPECT_FALSE(refused.ok());
  ASSERT_TRUE(send->Send(Tag(0), Bytes(10, 1)).ok());
  std::vector<std::byte> data(10);
  EXPECT_TRUE(recv->Recv(Tag(0), data).ok());
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         ::testing::Values("inproc", "shm", "tcp", "gloo", "sparse", "auto", "nccl",
                                           "ipc"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, TaggedTransportTest,
                         ::testing::Values("inproc", "shm", "tcp", "gloo", "sparse", "auto", "ipc"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, HostTransportTest,
                         ::testing::Values("inproc", "shm", "tcp", "gloo", "sparse", "auto"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, TransportStrangerTest, ::testing::Values("shm", "tcp", "gloo"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, TransportSecretTest,
                         ::testing::Values("shm", "tcp", "gloo", "auto", "ipc"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace takt::conformance
