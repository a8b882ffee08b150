// SPDX-License-Identifier: Apache-2.0
// Sends and receives the small messages that set up a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/transport/abort_signal.h"

namespace takt::transport {

// A non-blocking socket, each of whose waits ends by a deadline or an abort. It borrows the
// descriptor and the signal. Thread: one caller at a time.
class TimedSocket {
 public:
  // deadline: MonotonicNanos.
  TimedSocket(int fd, const AbortSignal& abort, std::int64_t deadline)
      : fd_(fd), abort_(abort), deadline_(deadline) {}

  // Waits until poll reports one of `events` or an error, which the next call on the socket
  // returns. Errors: kAborted, kDeadlineExceeded.
  absl::Status Await(short events) const;
  // Receives all of `bytes`.  Errors: also kUnavailable (the other end closed the connection).
  absl::Status Receive(std::span<std::byte> bytes) const;

 private:
  const int fd_;
  const AbortSignal& abort_;
  const std::int64_t deadline_;
};

// Sends all of `bytes`, which fit into the empty buffer of a new socket. Returns false if the
// connection broke; errno says why.
bool SendWhole(int fd, std::span<const std::byte> bytes);

// Returns kUnavailable with `what` and the text of errno.
absl::Status Broken(const char* what);

// Returns the bytes of a message that is sent as it lies in memory.
template <class Message>
std::span<std::byte> BytesOf(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}
template <class Message>
std::span<const std::byte> BytesOf(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace takt::transport
