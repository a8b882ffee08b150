// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/gloo/introduction.h"
#include "worker/transport/gloo/peer_listener.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// An abort is noticed within this time.
constexpr int kAbortLatencyMs = 100;
constexpr std::chrono::milliseconds kRedialAfter(50);
// The time for one connection. The listener closes it after ten seconds anyway.
constexpr absl::Duration kIntroductionTimeout = absl::Seconds(10);

absl::Status Broken(std::string_view what) {
  return absl::UnavailableError(
      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", std::strerror(errno)));
}

// One connection being made. Every wait ends by the deadline or an abort.
class Attempt {
 public:
  Attempt(const TransportOptions& options, const AbortSignal& abort, std::int64_t deadline)
      : options_(options), abort_(abort), deadline_(deadline) {}

  absl::StatusOr<net::Socket> Connect(Rank listener, const net::SocketAddress& address) {
    socket_ = net::Socket(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_.valid()) return Broken("socket");
    if (connect(socket_.fd(), address.get(), address.size) != 0) {
      if (errno != EINPROGRESS) return Broken("connect");
      RETURN_IF_ERROR(Await(POLLOUT));
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return absl::UnavailableError(absl::StrCat("connect: ", strerror(error)));
    }
    Challenge challenge;
    RETURN_IF_ERROR(Receive(challenge));
    if (challenge.magic != kIntroductionMagic)
      return absl::PermissionDeniedError("what listens there is no rank of a job");
    const Answer answer = AnswerTo(challenge, options_, listener);
    if (send(socket_.fd(), &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
      return Broken("answering");
    Welcome welcome;
    RETURN_IF_ERROR(Receive(welcome));
    if (!IsFrom(listener, welcome, answer, challenge, options_)) {
      return absl::PermissionDeniedError(
          absl::StrCat("rank ", listener.value(), " does not know this generation's secret"));
    }
    return std::move(socket_);
  }

 private:
  absl::Status Await(short events) {
    for (;;) {
      if (abort_.raised()) return AbortedStatus();
      if (MonotonicNanos() >= deadline_) return absl::DeadlineExceededError("no answer");
      pollfd polled{socket_.fd(), events, 0};
      if (poll(&polled, 1, kAbortLatencyMs) > 0) return absl::OkStatus();
    }
  }

  template <class Message>
  absl::Status Receive(Message& message) {
    for (std::size_t done = 0; done < sizeof(message);) {
      RETURN_IF_ERROR(Await(POLLIN));
      const ssize_t received = recv(socket_.fd(), reinterpret_cast<std::byte*>(&message) + done,
                                    sizeof(message) - done, 0);
      if (received == 0) return absl::UnavailableError("closed before the introduction was over");
      if (received < 0 && errno != EAGAIN && errno != EINTR) return Broken("receiving");
      if (received > 0) done += received;
    }
    return absl::OkStatus();
  }

  const TransportOptions& options_;
  const AbortSignal& abort_;
  const std::int64_t deadline_;
  net::Socket socket_;
};

}  // namespace

absl::StatusOr<net::Socket> DialPeer(const TransportOptions& options, Rank listener,
                                     const std::string& address, const AbortSignal& abort) {
  const absl::StatusOr<net::SocketAddress> target = net::ParseSocketAddress(address);
  if (!target.ok()) return UnreadableStatus(listener, "where it listens", address);
  const std::int64_t deadline =
      MonotonicNanos() + absl::ToInt64Nanoseconds(options.connect_timeout);
  for (absl::Status refusal;;) {
    const std::int64_t attempt_deadline =
        std::min(deadline, MonotonicNanos() + absl::ToInt64Nanoseconds(kIntroductionTimeout));
    absl::StatusOr<net::Socket> socket =
        Attempt(options, abort, attempt_deadline).Connect(listener, *target);
    if (socket.ok() || abort.raised()) return socket;
    if (absl::IsPermissionDenied(socket.status())) refusal = socket.status();
    if (MonotonicNanos() >= deadline) {
      if (!refusal.ok()) return refusal;
      return TimeoutStatus(absl::StrCat("rank ", listener.value(), " to answer at ", address, " (",
                                        socket.status().message(), ")"),
                           options.connect_timeout);
    }
    std::this_thread::sleep_for(kRedialAfter);
  }
}

}  // namespace takt::transport
