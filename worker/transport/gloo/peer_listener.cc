// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/gloo/peer_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// How long to leave the queue of new connections alone when there is no descriptor for one.
constexpr int kOutOfDescriptorsMs = 100;

std::int64_t After(absl::Duration timeout) {
  return MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
}

int MillisecondsUntil(std::int64_t deadline) {
  return static_cast<int>(
      std::clamp<std::int64_t>((deadline - MonotonicNanos()) / 1'000'000 + 1, 0, 3'600'000));
}

// All of a message, which fits the empty buffer of a new socket.
template <class Message>
bool SendWhole(const Socket& socket, const Message& message) {
  return send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(message));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Create(
    const TransportOptions& options, std::shared_ptr<AbortSignal> abort) {
  ASSIGN_OR_RETURN(Socket listener, ListenOn(options.data_address));
  ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener));
  Socket wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::UnavailableError(absl::StrCat("eventfd: ", strerror(errno)));
  return std::unique_ptr<PeerListener>(new PeerListener(
      options, std::move(abort), std::move(listener), std::move(wake), ToString(address)));
}

PeerListener::PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
                           Socket listener, Socket wake, std::string address)
    : options_(options),
      abort_(std::move(abort)),
      address_(std::move(address)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      thread_([this] {
        pthread_setname_np(pthread_self(), "takt-peers");
        Run();
      }) {}

PeerListener::~PeerListener() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

absl::StatusOr<Socket> PeerListener::Accept(Rank peer) {
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
  if (impersonated_.contains(peer)) {
    return absl::PermissionDeniedError(
        absl::StrCat("rank ", peer.value(), " does not know this generation's secret"));
  }
  return TimeoutStatus(absl::StrCat("rank ", peer.value(), " to connect to ", address_),
                       options_.connect_timeout);
}

void PeerListener::Run() {
  bool listens = true;
  std::vector<pollfd> polled;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
    }
    polled = {{wake_.fd(), POLLIN, 0}, {listens ? listener_.fd() : -1, POLLIN, 0}};
    for (const Stranger& stranger : strangers_) polled.push_back({stranger.socket.fd(), POLLIN, 0});
    int timeout_ms = strangers_.empty() ? -1 : MillisecondsUntil(strangers_.front().deadline);
    if (!listens) timeout_ms = kOutOfDescriptorsMs;
    poll(polled.data(), polled.size(), timeout_ms);

    const std::int64_t now = MonotonicNanos();
    std::size_t index = 2;
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++index) {
      bool done = polled[index].revents != 0 && Hear(*stranger);
      if (!done && stranger->deadline <= now) {
        Refuse(*stranger, "said nothing for too long");
        done = true;
      }
      stranger = done ? strangers_.erase(stranger) : std::next(stranger);
    }
    listens = !listens || polled[1].revents == 0 || Greet();
  }
}

bool PeerListener::Greet() {
  Stranger stranger{
      .socket = Socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
      .challenge = {.nonce = RandomNonce()},
      .deadline = After(kIntroductionTimeout)};
  if (!stranger.socket.valid()) {
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  }
  if (!SendWhole(stranger.socket, stranger.challenge)) return true;
  if (strangers_.size() == kMaxStrangers) {
    Refuse(strangers_.front(), "said nothing before too many others came");
    strangers_.pop_front();
  }
  strangers_.push_back(std::move(stranger));
  return true;
}

bool PeerListener::Hear(Stranger& stranger) {
  const ssize_t received =
      recv(stranger.socket.fd(),
           reinterpret_cast<std::byte*>(&stranger.answer) + stranger.received_bytes,
           sizeof(Answer) - stranger.received_bytes, MSG_DONTWAIT);
  if (received < 0) return errno != EAGAIN && errno != EINTR;
  if (received == 0) return true;
  stranger.received_bytes += received;
  if (stranger.received_bytes < sizeof(Answer)) return false;
  const Rank rank(static_cast<int>(stranger.answer.rank));
  if (!IsProven(stranger.answer, stranger.challenge, options_)) {
    Refuse(stranger, "does not know this generation's secret");
    std::lock_guard lock(mutex_);
    if (stranger.answer.rank >= 0 && stranger.answer.rank < options_.num_ranks)
      impersonated_.insert(rank);
    return true;
  }
  if (!SendWhole(stranger.socket, WelcomeFor(stranger.answer, stranger.challenge, options_)))
    return true;
  std::lock_guard lock(mutex_);
  // A peer that dials again has given up the connection before.
  proven_[rank] = std::move(stranger.socket);
  changed_.notify_all();
  return true;
}

// One line for each doubling: whoever floods the port does not flood the log.
void PeerListener::Refuse(const Stranger& stranger, const char* why) {
  if (!std::has_single_bit(static_cast<std::uint64_t>(++num_refused_))) return;
  SocketAddress from{.size = sizeof(from.storage)};
  getpeername(stranger.socket.fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.size);
  Log(LogLevel::kWarning, "data connection refused",
      {{"job", options_.job},
       {"rank", std::to_string(options_.rank.value())},
       {"from", ToString(from)},
       {"reason", why},
       {"refused_so_far", std::to_string(num_refused_)}});
}

}  // namespace takt::transport
