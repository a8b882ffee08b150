// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/peer_listener.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/transport/tcp/timed_socket.h"

namespace takt::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TransportOptions OptionsOf(int rank) {
  return {.rank = Rank(rank),
          .num_ranks = 3,
          .job = "job",
          .generation = 3,
          .secret = std::string(32, 's'),
          .data_address = "127.0.0.1",
          .connect_timeout = absl::Seconds(30)};
}

int CountDescriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// A connection that the test drives by hand.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const net::SocketAddress target = *net::ParseSocketAddress(address);
    socket_ = net::Socket(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket_.fd(), target.get(), target.size), 0);
  }
  Challenge ReadChallenge() {
    Challenge challenge;
    EXPECT_EQ(recv(socket_.fd(), &challenge, sizeof(challenge), MSG_WAITALL), sizeof(challenge));
    return challenge;
  }
  template <class Bytes>
  void Say(const Bytes& bytes) {
    EXPECT_EQ(send(socket_.fd(), &bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
  }
  bool WasRefused() {
    char byte = 0;
    return recv(socket_.fd(), &byte, 1, 0) <= 0;
  }
  bool WasWelcomed() {
    Welcome welcome;
    return recv(socket_.fd(), &welcome, sizeof(welcome), MSG_WAITALL) == sizeof(welcome);
  }

 private:
  net::Socket socket_;
};

class PeerListenerTest : public ::testing::Test {
 protected:
  static std::unique_ptr<PeerListener> Listen(const TransportOptions& options,
                                              std::shared_ptr<AbortSignal> abort) {
    auto listener = PeerListener::Create(options, std::move(abort));
    EXPECT_TRUE(listener.ok()) << listener.status();
    return *std::move(listener);
  }
  // Rank 1 dials, and what it sends arrives as from rank 1.
  void ExpectThatThePeerGetsThrough() {
    auto accepted = std::async(std::launch::async, [&] { return listener_->Accept(Rank(1)); });
    const absl::StatusOr<net::Socket> dialed =
        DialPeer(OptionsOf(1), Rank(0), listener_->address(), *abort_);
    ASSERT_TRUE(dialed.ok()) << dialed.status();
    const absl::StatusOr<net::Socket> socket = accepted.get();
    ASSERT_TRUE(socket.ok()) << socket.status();
    ASSERT_EQ(send(dialed->fd(), "hello", 5, MSG_NOSIGNAL), 5);
    char bytes[5];
    pollfd readable{socket->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, -1), 1);
    ASSERT_EQ(recv(socket->fd(), bytes, 5, 0), 5);
    EXPECT_EQ(std::string_view(bytes, 5), "hello");
  }
  void ExpectRefused(const TransportOptions& dialer, Rank meant = Rank(0)) {
    Stranger stranger(listener_->address());
    stranger.Say(AnswerTo(stranger.ReadChallenge(), dialer, meant));
    EXPECT_TRUE(stranger.WasRefused());
  }

  const std::shared_ptr<AbortSignal> abort_ = std::make_shared<AbortSignal>();
  const std::unique_ptr<PeerListener> listener_ = Listen(OptionsOf(0), abort_);
};

TEST_F(PeerListenerTest, BindsTheGivenAddressOnly) {
  EXPECT_EQ(listener_->address().substr(0, 10), "127.0.0.1:");
  TransportOptions options = OptionsOf(0);
  options.data_address = "192.0.2.1";  // of no machine
  EXPECT_EQ(PeerListener::Create(options, abort_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PeerListenerTest, ATakenPortIsASettingOfThisWorker) {
  TransportOptions options = OptionsOf(1);
  const std::string taken = listener_->address();
  ASSERT_TRUE(absl::SimpleAtoi(taken.substr(taken.rfind(':') + 1), &options.data_port));
  const absl::Status status = PeerListener::Create(options, abort_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat("data_port is ", options.data_port)),
                                      HasSubstr("Address already in use")));
}

TEST_F(PeerListenerTest, APeerMayDialAnotherAddressThanIsBound) {
  TransportOptions options = OptionsOf(0);
  {
    // Nothing listens there any more, and no other test binds this address.
    options.data_address = "127.0.9.1";
    const net::Socket free = net::ListenOn(options.data_address, "0").value();
    const std::string bound = net::ToString(net::LocalAddress(free).value());
    ASSERT_TRUE(absl::SimpleAtoi(bound.substr(bound.rfind(':') + 1), &options.data_port));
  }
  options.data_advertise = "203.0.113.5:7071";
  const auto listener = PeerListener::Create(options, abort_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address(), options.data_advertise);
  Stranger stranger(absl::StrCat(options.data_address, ":", options.data_port));
  EXPECT_EQ(stranger.ReadChallenge().magic, kIntroductionMagic);
}

TEST_F(PeerListenerTest, APeerThatKnowsTheSecretGetsThrough) { ExpectThatThePeerGetsThrough(); }

TEST_F(PeerListenerTest, AWrongSecretIsRefused) {
  TransportOptions stranger = OptionsOf(1);
  stranger.secret[31] = 'S';
  ExpectRefused(stranger);
  ExpectThatThePeerGetsThrough();
}

TEST_F(PeerListenerTest, AnOlderGenerationIsRefused) {
  TransportOptions older = OptionsOf(1);
  older.generation = 2;
  ExpectRefused(older);
  ExpectThatThePeerGetsThrough();
}

TEST_F(PeerListenerTest, AnAnswerMeantForAnotherRankIsRefused) {
  ExpectRefused(OptionsOf(1), Rank(2));
  ExpectThatThePeerGetsThrough();
}

TEST_F(PeerListenerTest, AReplayedAnswerIsRefused) {
  Stranger peer(listener_->address()), thief(listener_->address());
  const Answer overheard = AnswerTo(peer.ReadChallenge(), OptionsOf(1), Rank(0));
  thief.ReadChallenge();
  thief.Say(overheard);
  EXPECT_TRUE(thief.WasRefused());
  peer.Say(overheard);
  EXPECT_TRUE(peer.WasWelcomed());
  Stranger later(listener_->address());
  later.ReadChallenge();
  later.Say(overheard);
  EXPECT_TRUE(later.WasRefused());
}

TEST_F(PeerListenerTest, ALyingRankIsRefused) {
  Stranger stranger(listener_->address());
  Answer answer = AnswerTo(stranger.ReadChallenge(), OptionsOf(1), Rank(0));
  answer.rank = 2;
  stranger.Say(answer);
  EXPECT_TRUE(stranger.WasRefused());
}

TEST_F(PeerListenerTest, GarbageIsRefused) {
  Stranger stranger(listener_->address());
  stranger.ReadChallenge();
  std::array<char, sizeof(Answer)> garbage;
  garbage.fill('x');
  stranger.Say(garbage);
  EXPECT_TRUE(stranger.WasRefused());
  ExpectThatThePeerGetsThrough();
}

TEST_F(PeerListenerTest, AThousandSilentConnectionsKeepNobodyOutAndAreBounded) {
  const int before = CountDescriptors();
  std::vector<Stranger> silent;
  for (int i = 0; i < 1000; ++i) silent.emplace_back(listener_->address());
  // A connection that is answered came after all that were there before.
  silent.back().ReadChallenge();
  EXPECT_LE(CountDescriptors(), before + 1000 + net::ListenerOptions().max_connections + 1);
  ExpectThatThePeerGetsThrough();
}

TEST_F(PeerListenerTest, AnImpostorIsNamedWhenNobodyElseComes) {
  TransportOptions hasty = OptionsOf(0);
  hasty.connect_timeout = absl::ZeroDuration();
  const auto listener = Listen(hasty, abort_);
  Stranger stranger(listener->address());
  TransportOptions wrong = OptionsOf(1);
  wrong.secret = "?";
  stranger.Say(AnswerTo(stranger.ReadChallenge(), wrong, Rank(0)));
  EXPECT_TRUE(stranger.WasRefused());
  const absl::Status status = listener->Accept(Rank(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("; 127.0.0.1:"), HasSubstr("claimed to be it")));
}

TEST_F(PeerListenerTest, ADialerUsesNoListenerThatDoesNotKnowTheSecret) {
  TransportOptions impostor = OptionsOf(0);
  impostor.secret = "?";
  net::Socket listening = *net::ListenOn("127.0.0.1:0");
  fcntl(listening.fd(), F_SETFL, 0);
  auto pretend = std::async(std::launch::async, [&] {
    const net::Socket socket(accept(listening.fd(), nullptr, nullptr));
    const Challenge challenge{.nonce = RandomNonce()};
    send(socket.fd(), &challenge, sizeof(challenge), MSG_NOSIGNAL);
    Answer answer;
    recv(socket.fd(), &answer, sizeof(answer), MSG_WAITALL);
    const Welcome welcome = WelcomeFor(answer, challenge, impostor);
    send(socket.fd(), &welcome, sizeof(welcome), MSG_NOSIGNAL);
  });
  TransportOptions hasty = OptionsOf(1);
  hasty.connect_timeout = absl::Seconds(1);
  const std::string address = net::ToString(*net::LocalAddress(listening));
  EXPECT_EQ(DialPeer(hasty, Rank(0), address, *abort_).status().code(),
            absl::StatusCode::kPermissionDenied);
  pretend.wait();
}

TEST_F(PeerListenerTest, AnAbortEndsBothWaits) {
  const net::Socket deaf = *net::ListenOn("127.0.0.1:0");
  const std::string address = net::ToString(*net::LocalAddress(deaf));
  auto accepting =
      std::async(std::launch::async, [&] { return listener_->Accept(Rank(1)).status(); });
  auto dialing = std::async(std::launch::async, [&] {
    return DialPeer(OptionsOf(1), Rank(0), address, *abort_).status();
  });
  abort_->Raise();
  EXPECT_EQ(accepting.get().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(dialing.get().code(), absl::StatusCode::kAborted);
}

// Connections that carry a channel each.
class ChannelListenerTest : public PeerListenerTest {
 protected:
  static DialOptions DialOf(std::uint64_t channel, const std::string& address) {
    return {.listener = Rank(0),
            .address = address,
            .opening = {.channel = channel, .max_bytes = 100 * channel},
            .name = "F to rank 0"};
  }
  auto DialAsync(std::uint64_t channel) {
    return std::async(std::launch::async, [this, channel] {
      return DialChannel(OptionsOf(1), DialOf(channel, channels_->address()), *abort_);
    });
  }

  const std::unique_ptr<PeerListener> channels_ =
      *PeerListener::Create(OptionsOf(0), abort_, ConnectionUse::kChannel);
};

TEST_F(ChannelListenerTest, ChannelsOfOnePeerAreToldApart) {
  auto seven = DialAsync(7), eight = DialAsync(8);
  const auto answer = [&](std::uint64_t channel) {
    const auto accepted = channels_->AcceptChannel(Rank(1), channel);
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_EQ(accepted->opening.channel, channel);
    EXPECT_EQ(accepted->opening.max_bytes, 100 * channel);
    const Opening mine{.channel = channel, .max_bytes = 5};
    ASSERT_TRUE(SendWhole(accepted->socket.fd(), BytesOf(mine)));
    char last;
    EXPECT_EQ(recv(accepted->socket.fd(), &last, 1, MSG_DONTWAIT), -1) << "nothing follows yet";
  };
  answer(8);
  const auto dialed = eight.get();
  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->opening.max_bytes, 5u);
  answer(7);
  EXPECT_TRUE(seven.get().ok());
}

TEST_F(ChannelListenerTest, APeerThatNamesNoChannelIsRefused) {
  Stranger peer(channels_->address());
  peer.Say(AnswerTo(peer.ReadChallenge(), OptionsOf(1), Rank(0)));
  ASSERT_TRUE(peer.WasWelcomed());
  std::array<char, sizeof(Opening)> garbage;
  garbage.fill('x');
  peer.Say(garbage);
  EXPECT_TRUE(peer.WasRefused());
}

TEST_F(ChannelListenerTest, AnAbortEndsTheWaitForTheOtherEnd) {
  auto dialing = DialAsync(7);
  abort_->Raise();
  EXPECT_EQ(dialing.get().status().code(), absl::StatusCode::kAborted);
}

// Plays a listener that knows the secret: it takes as many connections as there are answers, and
// gives each the next one, or closes it if that is none.
void AnswerOpenings(const net::Socket& listening,
                    const std::vector<std::optional<Opening>>& answers) {
  for (const std::optional<Opening>& opening : answers) {
    const net::Socket socket(accept(listening.fd(), nullptr, nullptr));
    const Challenge challenge{.nonce = RandomNonce()};
    EXPECT_TRUE(SendWhole(socket.fd(), BytesOf(challenge)));
    Answer answer;
    recv(socket.fd(), &answer, sizeof(answer), MSG_WAITALL);
    EXPECT_TRUE(SendWhole(socket.fd(), BytesOf(WelcomeFor(answer, challenge, OptionsOf(0)))));
    Opening theirs;
    EXPECT_EQ(recv(socket.fd(), &theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
    if (!opening.has_value()) continue;
    EXPECT_TRUE(SendWhole(socket.fd(), BytesOf(*opening)));
    // The dialer closes it when it has read the answer.
    char end;
    recv(socket.fd(), &end, 1, 0);
  }
}

absl::StatusOr<PeerSocket> DialOneThatAnswers(const DialOptions& dial,
                                              const std::vector<std::optional<Opening>>& answers,
                                              const AbortSignal& abort) {
  const net::Socket listening = *net::ListenOn("127.0.0.1:0");
  fcntl(listening.fd(), F_SETFL, 0);
  auto pretend = std::async(std::launch::async,
                            [&listening, &answers] { AnswerOpenings(listening, answers); });
  DialOptions here = dial;
  here.address = net::ToString(*net::LocalAddress(listening));
  absl::StatusOr<PeerSocket> dialed = DialChannel(OptionsOf(1), here, abort);
  if (dialed.ok()) shutdown(dialed->socket.fd(), SHUT_RDWR);
  pretend.wait();
  return dialed;
}

TEST_F(ChannelListenerTest, ADialerWhoseConnectionIsClosedDialsAgain) {
  const auto dialed = DialOneThatAnswers(
      DialOf(7, ""), {std::nullopt, Opening{.channel = 7, .max_bytes = 9}}, *abort_);
  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->opening.max_bytes, 9u);
}

TEST_F(ChannelListenerTest, AnAnswerForAnotherChannelIsThePeersError) {
  const Opening wrong[] = {{.channel = 8, .max_bytes = 9}, {.magic = 1, .channel = 7}};
  for (const Opening& opening : wrong) {
    const absl::Status status = DialOneThatAnswers(DialOf(7, ""), {opening}, *abort_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("F to rank 0"));
  }
}

}  // namespace
}  // namespace takt::transport
