// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/timed_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/handshake.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// An abort is noticed within this time.
constexpr int kAbortLatencyMs = 100;

}  // namespace

absl::Status TimedSocket::Await(short events) const {
  for (;;) {
    if (abort_.raised()) return AbortedStatus();
    if (MonotonicNanos() >= deadline_) return absl::DeadlineExceededError("no answer");
    pollfd polled{fd_, events, 0};
    if (poll(&polled, 1, kAbortLatencyMs) > 0) return absl::OkStatus();
  }
}

absl::Status TimedSocket::Receive(std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    RETURN_IF_ERROR(Await(POLLIN));
    const ssize_t received = recv(fd_, bytes.data(), bytes.size(), 0);
    if (received == 0) return absl::UnavailableError("closed before the connection was made");
    if (received > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(received));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Broken("receiving");
    }
  }
  return absl::OkStatus();
}

bool SendWhole(int fd, std::span<const std::byte> bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

absl::Status Broken(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace takt::transport
