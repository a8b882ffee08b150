// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/gloo/peer_listener.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::transport {

namespace {

// Sends all of a message, which fits in the empty buffer of a new socket.
template <class Message>
bool SendWhole(const net::Socket& socket, const Message& message) {
  return send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof(message));
}

}  // namespace

// A connection that has been challenged. Its answer decides whether it is a peer.
class PeerListener::Unproven final : public net::Connection {
 public:
  Unproven(PeerListener& peers, net::Socket socket, const Challenge& challenge)
      : peers_(peers), challenge_(challenge), socket_(std::move(socket)) {}

  int fd() const override { return socket_.fd(); }

  short Serve(net::Listener& listener) override {
    const ssize_t received = recv(fd(), reinterpret_cast<std::byte*>(&answer_) + received_bytes_,
                                  sizeof(answer_) - received_bytes_, 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return POLLIN;
    if (received <= 0) return 0;
    received_bytes_ += received;
    if (received_bytes_ < sizeof(answer_)) return POLLIN;
    if (!IsProven(answer_, challenge_, peers_.options_)) {
      listener.LogRefusal(fd(), "does not know this generation's secret");
      peers_.NoteImpostor(answer_.rank, net::PeerName(fd()));
    } else if (SendWhole(socket_, WelcomeFor(answer_, challenge_, peers_.options_))) {
      peers_.AddProven(Rank(static_cast<int>(answer_.rank)), std::move(socket_));
    }
    return 0;
  }

 private:
  PeerListener& peers_;
  const Challenge challenge_;
  net::Socket socket_;
  Answer answer_;
  std::size_t received_bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Create(
    const TransportOptions& options, std::shared_ptr<AbortSignal> abort) {
  ASSIGN_OR_RETURN(net::Socket listening,
                   net::ListenOn(options.data_address, absl::StrCat(options.data_port)));
  return std::unique_ptr<PeerListener>(
      new PeerListener(options, std::move(abort), std::move(listening)));
}

PeerListener::PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
                           net::Socket listening)
    : options_(options),
      abort_(std::move(abort)),
      listener_(std::move(listening), {.name = "takt-data", .accept = [this](net::Socket socket) {
                                         return SendChallenge(std::move(socket));
                                       }}) {}

std::unique_ptr<net::Connection> PeerListener::SendChallenge(net::Socket socket) {
  const Challenge challenge{.nonce = RandomNonce()};
  if (!SendWhole(socket, challenge)) return nullptr;
  return std::make_unique<Unproven>(*this, std::move(socket), challenge);
}

absl::StatusOr<net::Socket> PeerListener::Accept(Rank peer) {
  const auto hook = abort_->OnRaise([this] {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  const auto came = [&] { return abort_->raised() || proven_.contains(peer); };
  const bool in_time =
      changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.connect_timeout), came);
  if (abort_->raised()) return AbortedStatus();
  if (in_time) return std::move(proven_.extract(peer).mapped());
  std::string what = absl::StrCat("rank ", peer.value(), " to connect to ", address());
  if (const auto impostor = impostors_.find(peer.value()); impostor != impostors_.end()) {
    absl::StrAppend(&what, "; ", impostor->second,
                    " claimed to be it and does not know this generation's secret");
  }
  return TimeoutStatus(what, options_.connect_timeout);
}

void PeerListener::AddProven(Rank peer, net::Socket socket) {
  std::lock_guard lock(mutex_);
  // A peer that dials again has given up its earlier connection.
  proven_[peer] = std::move(socket);
  changed_.notify_all();
}

void PeerListener::NoteImpostor(std::int64_t claimed_rank, const std::string& address) {
  std::lock_guard lock(mutex_);
  if (claimed_rank >= 0 && claimed_rank < options_.num_ranks) impostors_[claimed_rank] = address;
}

}  // namespace takt::transport
