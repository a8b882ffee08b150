// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/tcp/introduction.h"
#include "worker/transport/tcp/peer_listener.h"
#include "worker/transport/tcp/timed_socket.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

constexpr std::chrono::milliseconds kRedialAfter(50);
// The time for one connection. The listener closes it after ten seconds anyway.
constexpr absl::Duration kIntroductionTimeout = absl::Seconds(10);

std::int64_t DeadlineAfter(absl::Duration timeout) {
  return MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
}

// Connects `socket`. timed: the waits of the same socket.
absl::Status Connect(const net::Socket& socket, const TimedSocket& timed,
                     const net::SocketAddress& address) {
  if (connect(socket.fd(), address.get(), address.size) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return Broken("connect");
  RETURN_IF_ERROR(timed.Await(POLLOUT));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("connect: ", std::strerror(error)));
}

// Proves the secret on a new connection, and checks the listener's proof.
absl::Status Introduce(const TransportOptions& options, Rank listener, const net::Socket& socket,
                       const TimedSocket& timed) {
  Challenge challenge;
  RETURN_IF_ERROR(timed.Receive(BytesOf(challenge)));
  if (challenge.magic != kIntroductionMagic)
    return absl::PermissionDeniedError("the process that listens there is no rank of a job");
  const Answer answer = AnswerTo(challenge, options, listener);
  if (!SendWhole(socket.fd(), BytesOf(answer))) return Broken("answering");
  Welcome welcome;
  RETURN_IF_ERROR(timed.Receive(BytesOf(welcome)));
  if (IsFrom(listener, welcome, answer, challenge, options)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("rank ", listener.value(), " does not know this generation's secret"));
}

// Says why another host may not get there. Workers listen on 127.0.0.1 unless told otherwise.
const char* HintAt(const net::SocketAddress& address) {
  return net::IsLoopback(address) || net::IsUnspecified(address)
             ? "; other hosts need another --data-address of that worker, or --data-advertise"
             : "";
}

// Makes one connection. Every wait ends by the deadline or an abort.
absl::StatusOr<net::Socket> DialOnce(const TransportOptions& options, Rank listener,
                                     const net::SocketAddress& address, const AbortSignal& abort,
                                     std::int64_t deadline) {
  net::Socket socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return is_full ? absl::ResourceExhaustedError(absl::StrCat(
                         "cannot make a socket: ", std::strerror(errno),
                         "; raise the limit of open files of this process (ulimit -n)"))
                   : Broken("socket");
  }
  const TimedSocket timed(socket.fd(), abort, deadline);
  RETURN_IF_ERROR(Connect(socket, timed, address));
  RETURN_IF_ERROR(Introduce(options, listener, socket, timed));
  return socket;
}

// Returns whether `opening`, which `dial.listener` answered, is of the channel that was dialed.
absl::Status CheckOpening(const Opening& opening, const DialOptions& dial) {
  if (opening.magic == kOpeningMagic && opening.channel == dial.opening.channel)
    return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "rank ", dial.listener.value(), " did not answer with the opening of channel ", dial.name));
}

}  // namespace

absl::StatusOr<net::Socket> DialPeer(const TransportOptions& options, Rank listener,
                                     const std::string& address, const AbortSignal& abort) {
  const absl::StatusOr<net::SocketAddress> target = net::ParseSocketAddress(address);
  if (!target.ok()) return UnreadableStatus(listener, "where it listens", address);
  const std::int64_t deadline = DeadlineAfter(options.connect_timeout);
  for (absl::Status refusal;;) {
    absl::StatusOr<net::Socket> socket = DialOnce(
        options, listener, *target, abort, std::min(deadline, DeadlineAfter(kIntroductionTimeout)));
    if (socket.ok() || absl::IsResourceExhausted(socket.status())) return socket;
    if (abort.raised()) return AbortedStatus();
    if (absl::IsPermissionDenied(socket.status())) refusal = socket.status();
    if (MonotonicNanos() >= deadline) {
      if (!refusal.ok()) return refusal;
      return TimeoutStatus(absl::StrCat("rank ", listener.value(), " to answer at ", address, " (",
                                        socket.status().message(), HintAt(*target), ")"),
                           options.connect_timeout);
    }
    std::this_thread::sleep_for(kRedialAfter);
  }
}

absl::StatusOr<PeerSocket> DialChannel(const TransportOptions& options, const DialOptions& dial,
                                       const AbortSignal& abort) {
  const std::int64_t deadline = DeadlineAfter(options.connect_timeout);
  for (TransportOptions left = options;;) {
    PeerSocket dialed;
    ASSIGN_OR_RETURN(dialed.socket, DialPeer(left, dial.listener, dial.address, abort));
    absl::Status status =
        SendWhole(dialed.socket.fd(), BytesOf(dial.opening))
            ? TimedSocket(dialed.socket.fd(), abort, deadline).Receive(BytesOf(dialed.opening))
            : Broken("opening");
    if (status.ok()) {
      RETURN_IF_ERROR(CheckOpening(dialed.opening, dial));
      return dialed;
    }
    if (abort.raised()) return AbortedStatus();
    // The listener closes connections that are not done when too many others come.
    left.connect_timeout = absl::Nanoseconds(deadline - MonotonicNanos());
    if (left.connect_timeout <= absl::ZeroDuration()) {
      return TimeoutStatus(absl::StrCat("the peer to open channel ", dial.name),
                           options.connect_timeout);
    }
    std::this_thread::sleep_for(kRedialAfter);
  }
}

}  // namespace takt::transport
