// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/peer_listener.h"

#include <poll.h>

#include <cerrno>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/tcp/timed_socket.h"

namespace takt::transport {

// A connection that has been sent a challenge. Its answer decides whether it comes from a peer.
class PeerListener::Unproven final : public net::Connection {
 public:
  Unproven(PeerListener& peers, net::Socket socket, const Challenge& challenge)
      : peers_(peers), challenge_(challenge), socket_(std::move(socket)) {}

  int fd() const override { return socket_.fd(); }

  short Serve(net::Listener& listener) override {
    switch (Receive(proven_ ? BytesOf(opening_) : BytesOf(answer_))) {
      case Received::kPart:
        return POLLIN;
      case Received::kNothing:
        return 0;
      case Received::kAll:
        break;
    }
    received_bytes_ = 0;
    return proven_ ? TakeOpening(listener) : TakeAnswer(listener);
  }

 private:
  enum class Received { kNothing, kPart, kAll };

  // Reads on, and no further than the end of `message`. kNothing: the connection has ended.
  Received Receive(std::span<std::byte> message) {
    const std::span<std::byte> rest = message.subspan(received_bytes_);
    const ssize_t received = recv(fd(), rest.data(), rest.size(), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::kPart;
    if (received <= 0) return Received::kNothing;
    received_bytes_ += static_cast<std::size_t>(received);
    return received_bytes_ == message.size() ? Received::kAll : Received::kPart;
  }

  short TakeAnswer(net::Listener& listener) {
    if (!IsProven(answer_, challenge_, peers_.options_)) {
      listener.LogRefusal(fd(), "does not know this generation's secret");
      peers_.NoteImpostor(answer_.rank, net::PeerName(fd()));
      return 0;
    }
    if (!SendWhole(fd(), BytesOf(WelcomeFor(answer_, challenge_, peers_.options_)))) return 0;
    proven_ = true;
    if (peers_.use_ == ConnectionUse::kChannel) return POLLIN;
    Add();
    return 0;
  }

  short TakeOpening(net::Listener& listener) {
    if (opening_.magic == kOpeningMagic) {
      Add();
    } else {
      listener.LogRefusal(fd(), "names no channel");
    }
    return 0;
  }

  void Add() {
    peers_.AddProven(Rank(static_cast<int>(answer_.rank)), {std::move(socket_), opening_});
  }

  PeerListener& peers_;
  const Challenge challenge_;
  net::Socket socket_;
  Answer answer_;
  bool proven_ = false;
  Opening opening_;
  std::size_t received_bytes_ = 0;  // of the answer, then of the opening
};

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Create(
    const TransportOptions& options, std::shared_ptr<AbortSignal> abort, ConnectionUse use) {
  absl::StatusOr<net::Socket> listening =
      net::ListenOn(options.data_address, absl::StrCat(options.data_port));
  if (!listening.ok() && options.data_port != 0) {
    return UnusableField({.field = "data_port",
                          .value = absl::StrCat(options.data_port),
                          .rule = "must be free on this host",
                          .fix = absl::StrCat("give each worker of a host a port of its own (",
                                              std::string(listening.status().message()), ")")});
  }
  RETURN_IF_ERROR(listening.status());
  return std::unique_ptr<PeerListener>(
      new PeerListener(options, std::move(abort), use, *std::move(listening)));
}

PeerListener::PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
                           ConnectionUse use, net::Socket listening)
    : options_(options),
      abort_(std::move(abort)),
      use_(use),
      listener_(std::move(listening), {.name = "takt-data", .accept = [this](net::Socket socket) {
                                         return SendChallenge(std::move(socket));
                                       }}) {}

std::unique_ptr<net::Connection> PeerListener::SendChallenge(net::Socket socket) {
  const Challenge challenge{.nonce = RandomNonce()};
  if (!SendWhole(socket.fd(), BytesOf(challenge))) return nullptr;
  return std::make_unique<Unproven>(*this, std::move(socket), challenge);
}

absl::StatusOr<net::Socket> PeerListener::Accept(Rank peer) {
  ASSIGN_OR_RETURN(PeerSocket accepted, AcceptChannel(peer, 0));
  return std::move(accepted.socket);
}

absl::StatusOr<PeerSocket> PeerListener::AcceptChannel(Rank peer, std::uint64_t channel) {
  const auto hook = abort_->OnRaise([this] {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  const std::pair key(peer, channel);
  const auto came = [&] { return abort_->raised() || proven_.contains(key); };
  const bool in_time =
      changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.connect_timeout), came);
  if (abort_->raised()) return AbortedStatus();
  if (in_time) return std::move(proven_.extract(key).mapped());
  std::string what = absl::StrCat("rank ", peer.value(), " to connect to ", address());
  if (const auto impostor = impostors_.find(peer.value()); impostor != impostors_.end()) {
    absl::StrAppend(&what, "; ", impostor->second,
                    " claimed to be it and does not know this generation's secret");
  }
  return TimeoutStatus(what, options_.connect_timeout);
}

void PeerListener::AddProven(Rank peer, PeerSocket connection) {
  std::lock_guard lock(mutex_);
  // A peer that dials again has given up its earlier connection.
  const std::uint64_t channel = connection.opening.channel;
  proven_[{peer, channel}] = std::move(connection);
  changed_.notify_all();
}

void PeerListener::NoteImpostor(std::int64_t claimed_rank, const std::string& address) {
  std::lock_guard lock(mutex_);
  if (claimed_rank >= 0 && claimed_rank < options_.num_ranks) impostors_[claimed_rank] = address;
}

}  // namespace takt::transport
