// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/handshake.h"

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/message_header.h"
#include "worker/transport/transport.h"

namespace takt::transport {
namespace {

// Nobody sets a key. A wait takes as long as it may, unless it is stopped.
class NobodysRendezvous final : public Rendezvous {
 public:
  absl::Status Set(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    AbortSignal never;
    return WaitAllUnless(never, {key}, timeout).status();
  }
  absl::StatusOr<std::vector<std::string>> WaitAllUnless(AbortSignal& abort,
                                                         const std::vector<std::string>&,
                                                         absl::Duration timeout) override {
    absl::Notification stopped;
    const auto hook = abort.OnRaise([&] { stopped.Notify(); });
    if (!waiting.HasBeenNotified()) waiting.Notify();
    if (stopped.WaitForNotificationWithTimeout(timeout)) return absl::CancelledError("stopped");
    return absl::DeadlineExceededError("nobody is here");
  }
  absl::Duration longest_wait() const override { return absl::Hours(1); }

  absl::Notification waiting;
};

TEST(AwaitKey, EndsWithItsTransport) {
  NobodysRendezvous rendezvous;
  AbortSignal abort;
  std::thread aborter([&] {
    rendezvous.waiting.WaitForNotification();
    abort.Raise();
  });
  const absl::Status status =
      AwaitKey(rendezvous, "rank/1", absl::Hours(1), abort, "rank 1 to listen").status();
  aborter.join();
  EXPECT_EQ(status, AbortedStatus());
}

TEST(AwaitKey, SaysWhatItWaitedFor) {
  NobodysRendezvous rendezvous;
  AbortSignal abort;
  EXPECT_EQ(AwaitKey(rendezvous, "rank/1", absl::Milliseconds(20), abort, "rank 1 to listen")
                .status()
                .message(),
            "waited 20ms for rank 1 to listen");
}

TEST(Prove, DependsOnSecretJobGenerationAndMessage) {
  const TransportOptions base{.job = "job", .generation = 1, .secret = "secret"};
  const Proof proof = Prove(base, "message");
  EXPECT_EQ(Prove(base, "message"), proof);
  EXPECT_NE(Prove(base, "other"), proof);
  TransportOptions other = base;
  other.secret = "Secret";
  EXPECT_NE(Prove(other, "message"), proof);
  other = base;
  other.job = "jab";
  EXPECT_NE(Prove(other, "message"), proof);
  other = base;
  other.generation = 2;
  EXPECT_NE(Prove(other, "message"), proof);
}

// RFC 4231 has no case with our framing. The values come from `openssl dgst -sha256 -hmac secret`.
TEST(Prove, IsHmacSha256OfJobGenerationAndMessage) {
  const TransportOptions options{.job = "job", .generation = 1, .secret = "secret"};
  EXPECT_EQ(ToHex(AsText(Prove(options, "message"))),
            "ba8b73c292cae7f0c3636c44569172c0aa9338480c840ce57cbbae45f5ca557b");
}

TEST(UnreadableStatus, BlamesThePeerAndQuotesALittle) {
  const absl::Status status =
      UnreadableStatus(Rank(3), "where it listens", "\n" + std::string(1000, 'x'));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "rank 3 told where it listens as \"\\n" + std::string(63, 'x') +
                                  "\", which cannot be read");
}

TEST(Hex, RoundTripsAndRefusesOtherText) {
  const std::string bytes("\0\x7f\xff", 3);
  EXPECT_EQ(ToHex(bytes), "007fff");
  EXPECT_EQ(*FromHex("007fff"), bytes);
  EXPECT_FALSE(FromHex("0").ok());
  EXPECT_FALSE(FromHex("zz").ok());
}

TEST(CheckHeader, NamesBothTagsAndSizes) {
  const MessageTag expected{
      .generation = 2, .step = 7, .stage = 1, .microbatch = 3, .direction = 1};
  MessageHeader header{.tag = expected, .size_bytes = 10};
  EXPECT_TRUE(CheckHeader(header, expected, 10, "F from rank 0").ok());
  header.tag.step = 6;
  const absl::Status status = CheckHeader(header, expected, 12, "F from rank 0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "channel F from rank 0: expected generation 2 step 7 stage 1 microbatch 3 direction 1 "
            "sequence 0 of 12 bytes, but generation 2 step 6 stage 1 microbatch 3 direction 1 "
            "sequence 0 of 10 bytes came");
  header.magic = 0;
  EXPECT_EQ(CheckHeader(header, expected, 10, "F").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace takt::transport
