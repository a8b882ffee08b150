// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/gloo/connection.h"

#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gloo/common/error.h"
#include "worker/transport/gloo/adopted_pair.h"
#include "worker/transport/handshake.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

std::chrono::milliseconds GlooTimeout(absl::Duration timeout) {
  // To Gloo, zero means "for ever".
  constexpr absl::Duration kLongest = absl::Hours(24);
  return std::chrono::milliseconds(
      std::max<std::int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kLongest))));
}

template <class Call>
absl::Status Contain(const std::string& what, Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const gloo::IoException& error) {
    return absl::UnavailableError(absl::StrCat(what, ": ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

// wait: returns false if it was aborted.
template <class Wait>
absl::Status Finish(const AbortSignal& abort, absl::Duration timeout, const std::string& what,
                    Wait&& wait) {
  bool done = false;
  const std::int64_t start = MonotonicNanos();
  const absl::Status status = Contain(what, [&] { done = wait(GlooTimeout(timeout)); });
  if (abort.raised()) return AbortedStatus();
  if (absl::IsUnavailable(status) && absl::Nanoseconds(MonotonicNanos() - start) >= timeout) {
    return TimeoutStatus(what, timeout);
  }
  if (status.ok() && !done) return AbortedStatus();
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooConnection>> GlooConnection::Create(
    const TransportOptions& options, std::shared_ptr<gloo::transport::tcp::Device> device,
    int index, net::Socket socket, std::shared_ptr<AbortSignal> abort) {
  std::shared_ptr<GlooConnection> connection(new GlooConnection(std::move(abort), index));
  RETURN_IF_ERROR(Contain("taking a connection over", [&] {
    connection->context_ =
        AdoptSocket(device, index, GlooTimeout(options.operation_timeout), std::move(socket));
  }));
  return connection;
}

GlooConnection::Buffer::Buffer(std::shared_ptr<GlooConnection> connection, void* bytes,
                               std::size_t size_bytes)
    : connection_(std::move(connection)),
      buffer_(connection_->context_->createUnboundBuffer(bytes, size_bytes)),
      abort_hook_(connection_->abort_->OnRaise([buffer = buffer_.get()] {
        buffer->abortWaitSend();
        buffer->abortWaitRecv();
      })) {}

absl::Status GlooConnection::Buffer::StartSend(std::uint64_t slot, std::size_t size_bytes) {
  if (connection_->abort_->raised()) return AbortedStatus();
  return Contain("send", [&] { buffer_->send(1 - connection_->index_, slot, 0, size_bytes); });
}

absl::Status GlooConnection::Buffer::StartRecv(std::uint64_t slot, std::size_t size_bytes) {
  if (connection_->abort_->raised()) return AbortedStatus();
  return Contain("receive", [&] { buffer_->recv(1 - connection_->index_, slot, 0, size_bytes); });
}

absl::Status GlooConnection::Buffer::FinishSend(absl::Duration timeout, const std::string& what) {
  return Finish(*connection_->abort_, timeout, what,
                [&](std::chrono::milliseconds limit) { return buffer_->waitSend(limit); });
}

absl::Status GlooConnection::Buffer::FinishRecv(absl::Duration timeout, const std::string& what) {
  return Finish(*connection_->abort_, timeout, what,
                [&](std::chrono::milliseconds limit) { return buffer_->waitRecv(limit); });
}

}  // namespace takt::transport
