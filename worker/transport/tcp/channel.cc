// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/handshake.h"
#include "worker/transport/message_header.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// Returns the milliseconds until `deadline`, rounded up, as poll takes them.
int MillisUntil(std::int64_t deadline) {
  if (deadline == kNoDeadline) return -1;
  constexpr std::int64_t kNanosPerMilli = 1'000'000;
  const std::int64_t nanos = std::max<std::int64_t>(0, deadline - MonotonicNanos());
  return static_cast<int>(
      std::min<std::int64_t>(nanos / kNanosPerMilli + 1, std::numeric_limits<int>::max()));
}

// The part of a header and its data that has not passed yet, as the kernel takes it.
class Remainder {
 public:
  Remainder(MessageHeader& header, void* data, std::size_t size_bytes)
      : pieces_{{&header, sizeof(header)}, {data, size_bytes}} {
    message_.msg_iov = pieces_;
    message_.msg_iovlen = 2;
  }
  Remainder(const Remainder&) = delete;

  msghdr* message() { return &message_; }
  bool has_header() const { return pieces_[0].iov_len > 0; }
  bool empty() const { return pieces_[0].iov_len + pieces_[1].iov_len == 0; }

  void Remove(std::size_t bytes) {
    for (iovec& piece : pieces_) {
      const std::size_t passed = std::min(bytes, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + passed;
      piece.iov_len -= passed;
      bytes -= passed;
    }
  }

 private:
  iovec pieces_[2];
  msghdr message_ = {};
};

// The common part of both ends: the socket, its waits, and the first failure.
class TcpEnd {
 protected:
  explicit TcpEnd(TcpChannelOptions options)
      : options_(std::move(options)),
        // This sends nothing. It wakes a receiver, and also a sender, because its poll asks for
        // POLLRDHUP.
        abort_hook_(
            options_.abort->OnRaise([fd = options_.socket.fd()] { shutdown(fd, SHUT_RD); })) {}

  int fd() const { return options_.socket.fd(); }
  bool aborted() const { return options_.abort->raised(); }

  std::int64_t Deadline() const {
    if (options_.operation_timeout == absl::InfiniteDuration()) return kNoDeadline;
    return MonotonicNanos() + absl::ToInt64Nanoseconds(options_.operation_timeout);
  }
  absl::Status TimedOut(const char* what) const {
    return TimeoutStatus(absl::StrCat(what, " (channel ", options_.channel, ")"),
                         options_.operation_timeout);
  }
  absl::Status PeerLeft() const {
    return absl::UnavailableError(absl::StrCat("channel ", options_.channel, ": the peer left"));
  }
  absl::Status Broken(int error) const {
    if (error == EPIPE || error == ECONNRESET) return PeerLeft();
    return absl::UnavailableError(absl::StrCat("channel ", options_.channel,
                                               ": the connection broke: ", std::strerror(error)));
  }

  const TcpChannelOptions options_;
  absl::Status failure_;  // sticks: a broken stream of bytes is never used again

 private:
  AbortSignal::Registration abort_hook_;  // last: gone before the socket
};

class TcpSender final : public SendChannel, TcpEnd {
 public:
  explicit TcpSender(TcpChannelOptions options) : TcpEnd(std::move(options)) {}

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    RETURN_IF_ERROR(CheckFits(options_.channel, data.size(), options_.max_bytes));
    return failure_ = Transfer(tag, data);
  }

 private:
  absl::Status Transfer(const MessageTag& tag, std::span<const std::byte> data) {
    MessageHeader header{.tag = tag, .size_bytes = data.size()};
    // The kernel does not write to what it sends.
    Remainder left(header, const_cast<std::byte*>(data.data()), data.size());
    const std::int64_t deadline = Deadline();
    while (!left.empty()) {
      if (aborted()) return AbortedStatus();
      const ssize_t sent = sendmsg(fd(), left.message(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) {
        left.Remove(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        RETURN_IF_ERROR(AwaitRoom(deadline));
      } else if (errno != EINTR) {
        return Broken(errno);
      }
    }
    return absl::OkStatus();
  }

  // Waits until the kernel has room for more, or until the connection breaks, which the next call
  // reports.
  absl::Status AwaitRoom(std::int64_t deadline) {
    if (MonotonicNanos() >= deadline) return TimedOut("the receiver to take a message");
    pollfd polled{fd(), POLLOUT | POLLRDHUP, 0};
    const int ready = poll(&polled, 1, MillisUntil(deadline));
    if (aborted()) return AbortedStatus();
    if (ready > 0 && (polled.revents & POLLRDHUP) != 0) return PeerLeft();
    return absl::OkStatus();
  }
};

class TcpReceiver final : public RecvChannel, TcpEnd {
 public:
  explicit TcpReceiver(TcpChannelOptions options) : TcpEnd(std::move(options)) {
    // The receiving call itself waits in the kernel, which ends the wait at the deadline (0 would
    // mean never).
    const timeval timeout =
        absl::ToTimeval(std::max(options_.operation_timeout, absl::Milliseconds(1)));
    TAKT_CHECK(setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
    TAKT_CHECK(fcntl(fd(), F_SETFL, 0) == 0);
  }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    return failure_ = Transfer(tag, data);
  }

 private:
  absl::Status Transfer(const MessageTag& tag, std::span<std::byte> data) {
    MessageHeader header;
    Remainder left(header, data.data(), data.size());
    const std::int64_t deadline = Deadline();
    // The first call takes the bytes that have come, which are the whole message if it is small. It
    // never waits for more bytes than the header announces.
    while (left.has_header()) RETURN_IF_ERROR(Take(left, 0, deadline));
    RETURN_IF_ERROR(CheckHeader(header, tag, data.size(), options_.channel));
    while (!left.empty()) RETURN_IF_ERROR(Take(left, MSG_WAITALL, deadline));
    return absl::OkStatus();
  }

  absl::Status Take(Remainder& left, int flags, std::int64_t deadline) {
    if (aborted()) return AbortedStatus();
    if (MonotonicNanos() >= deadline) return TimedOut("a message");
    const ssize_t received = recvmsg(fd(), left.message(), flags);
    const int error = errno;
    if (received > 0) {
      left.Remove(static_cast<std::size_t>(received));
      return absl::OkStatus();
    }
    if (aborted()) return AbortedStatus();
    if (received == 0) return PeerLeft();
    if (error == EAGAIN) return TimedOut("a message");
    return error == EINTR ? absl::OkStatus() : Broken(error);
  }
};

}  // namespace

std::unique_ptr<SendChannel> MakeTcpSender(TcpChannelOptions options) {
  return std::make_unique<TcpSender>(std::move(options));
}

std::unique_ptr<RecvChannel> MakeTcpReceiver(TcpChannelOptions options) {
  return std::make_unique<TcpReceiver>(std::move(options));
}

}  // namespace takt::transport
