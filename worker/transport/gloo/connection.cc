// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/gloo/connection.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gloo/common/error.h"
#include "worker/transport/handshake.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// The low slots are ours; channels use hashes far above them.
constexpr std::uint64_t kNonceSlot = 1, kProofSlot = 2;
// Gloo waits five times its timeout for a connection.
constexpr int kGlooConnectFactor = 5;

std::chrono::milliseconds GlooTimeout(absl::Duration timeout) {
  // Zero means "for ever" to Gloo.
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
    const TransportOptions& options, std::shared_ptr<gloo::transport::Device> device,
    Rendezvous& rendezvous, Rank peer, const std::shared_ptr<AbortSignal>& abort) {
  std::shared_ptr<GlooConnection> connection(
      new GlooConnection(std::move(device), abort, options.rank < peer ? 0 : 1));
  RETURN_IF_ERROR(connection->Connect(options, rendezvous, peer));
  RETURN_IF_ERROR(Challenge(connection, options, peer));
  return connection;
}

absl::Status GlooConnection::Connect(const TransportOptions& options, Rendezvous& rendezvous,
                                     Rank peer) {
  const std::string what = absl::StrCat("connecting to rank ", peer.value());
  std::string address;
  gloo::transport::Pair* pair = nullptr;
  RETURN_IF_ERROR(Contain(what, [&] {
    context_ = device_->createContext(index_, 2);
    context_->setTimeout(GlooTimeout(options.connect_timeout / kGlooConnectFactor));
    pair = context_->createPair(1 - index_).get();
    const std::vector<char> bytes = pair->address().bytes();
    address.assign(bytes.begin(), bytes.end());
  }));
  RETURN_IF_ERROR(rendezvous.Set(absl::StrCat("gloo/", ChannelKey(options.rank, peer, "address")),
                                 ToHex(address)));
  ASSIGN_OR_RETURN(
      const std::string peer_hex,
      AwaitKey(rendezvous, absl::StrCat("gloo/", ChannelKey(peer, options.rank, "address")),
               options.connect_timeout, *abort_,
               absl::StrCat("rank ", peer.value(), " to connect")));
  ASSIGN_OR_RETURN(const std::string peer_address, FromHex(peer_hex));

  // Closing the pair is what wakes a blocked connect.
  const auto hook = abort_->OnRaise([pair] { pair->close(); });
  const std::int64_t start = MonotonicNanos();
  const absl::Status status = Contain(
      what, [&] { pair->connect(std::vector<char>(peer_address.begin(), peer_address.end())); });
  if (abort_->raised()) return AbortedStatus();
  if (!status.ok() && absl::Nanoseconds(MonotonicNanos() - start) >= options.connect_timeout) {
    return TimeoutStatus(absl::StrCat("rank ", peer.value(), " to connect"),
                         options.connect_timeout);
  }
  return status;
}

absl::Status GlooConnection::Challenge(const std::shared_ptr<GlooConnection>& connection,
                                       const TransportOptions& options, Rank peer) {
  const auto exchange = [&](std::uint64_t slot, std::array<std::byte, 16> mine,
                            std::array<std::byte, 16>& theirs) -> absl::Status {
    Buffer out(connection, mine.data(), mine.size()), in(connection, theirs.data(), theirs.size());
    const std::string what = absl::StrCat("rank ", peer.value(), " to prove its generation");
    RETURN_IF_ERROR(in.StartRecv(slot, theirs.size()));
    RETURN_IF_ERROR(out.StartSend(slot, mine.size()));
    RETURN_IF_ERROR(out.FinishSend(options.connect_timeout, what));
    return in.FinishRecv(options.connect_timeout, what);
  };
  const auto proof_of = [&](Rank prover, const Nonce& challenge) {
    return transport::Prove(options,
                            absl::StrCat("gloo ", prover.value(), " ", ToHex(AsText(challenge))));
  };
  const Nonce my_challenge = RandomNonce();
  Nonce their_challenge;
  RETURN_IF_ERROR(exchange(kNonceSlot, my_challenge, their_challenge));
  Proof their_proof;
  RETURN_IF_ERROR(exchange(kProofSlot, proof_of(options.rank, their_challenge), their_proof));
  if (their_proof == proof_of(peer, my_challenge)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("rank ", peer.value(), " does not know this generation's secret"));
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
