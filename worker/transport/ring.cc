// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/message_header.h"

namespace takt::transport {

namespace {

constexpr std::size_t kAlign = sizeof(MessageHeader);
// Pieces are large enough that reporting progress costs nothing, and small enough that both ends
// are busy at once and a piece stays in the L2 cache.
constexpr std::size_t kPieceBytes = 32 * 1024;
constexpr std::size_t kMinCapacity = 64 * 1024;
constexpr std::size_t kMaxCapacity = 512 * 1024;
// A reply to a small message comes well within this time if its sender has a core to itself. If the
// two share a core, spinning only keeps the sender from answering.
constexpr std::int64_t kSpinNanos = 5'000;

std::size_t Padded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// The common part of both ends: the memory, the waits, and the first failure.
class RingEnd {
 public:
  explicit RingEnd(RingOptions options)
      : options_(std::move(options)),
        capacity_(RingCapacity(options_.max_message_bytes)),
        header_(*reinterpret_cast<RingHeader*>(options_.memory.get())),
        bytes_(options_.memory.get() + sizeof(RingHeader)) {}

 protected:
  std::int64_t Deadline() const {
    if (options_.operation_timeout == absl::InfiniteDuration()) return kNoDeadline;
    return MonotonicNanos() + absl::ToInt64Nanoseconds(options_.operation_timeout);
  }
  absl::Status Fail(absl::Status status) {
    if (failure_.ok()) failure_ = status;
    return status;
  }
  absl::Status TimedOut(const char* what) {
    return Fail(TimeoutStatus(absl::StrCat(what, " (channel ", options_.channel, ")"),
                              options_.operation_timeout));
  }
  absl::Status PeerLeft() {
    return Fail(
        absl::UnavailableError(absl::StrCat("channel ", options_.channel, ": the peer left")));
  }

  const RingOptions options_;
  const std::size_t capacity_;
  RingHeader& header_;
  std::byte* const bytes_;
  absl::Status failure_;  // sticks: a broken stream of bytes is never used again
};

class RingSender final : public SendChannel, RingEnd {
 public:
  explicit RingSender(RingOptions options) : RingEnd(std::move(options)) {
    abort_hook_ = options_.abort->OnRaise([this] { header_.tail_moved.WakeAfterAll(); });
  }
  ~RingSender() override {
    header_.sender_left.store(1, std::memory_order_seq_cst);
    header_.head_moved.Wake();
  }

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    RETURN_IF_ERROR(CheckFits(options_.channel, data.size(), options_.max_message_bytes));
    if (header_.receiver_left.load(std::memory_order_relaxed) != 0) return PeerLeft();
    const std::int64_t deadline = Deadline();
    MessageHeader message{.tag = tag, .size_bytes = data.size()};
    RETURN_IF_ERROR(AwaitSpace(deadline));
    std::memcpy(bytes_ + head_ % capacity_, &message, sizeof(message));
    head_ += sizeof(message);
    if (data.empty()) Publish();
    while (!data.empty()) {
      RETURN_IF_ERROR(AwaitSpace(deadline));
      const std::size_t offset = head_ % capacity_;
      const std::size_t piece =
          std::min({data.size(), kPieceBytes, capacity_ - offset, capacity_ - (head_ - tail_)});
      std::memcpy(bytes_ + offset, data.data(), piece);
      data = data.subspan(piece);
      head_ += data.empty() ? Padded(piece) : piece;
      Publish();
    }
    return absl::OkStatus();
  }

 private:
  void Publish() {
    header_.head.store(head_, std::memory_order_seq_cst);
    header_.head_moved.Wake();
  }

  absl::Status AwaitSpace(std::int64_t deadline) {
    if (head_ - tail_ < capacity_ && !options_.abort->raised()) return absl::OkStatus();
    // The header is published with the first piece. Before a wait for space everything written must
    // be visible.
    if (header_.head.load(std::memory_order_relaxed) != head_) Publish();
    bool left = false;
    const bool in_time = header_.tail_moved.Await(
        [&] {
          tail_ = header_.tail.load(std::memory_order_seq_cst);
          left = header_.receiver_left.load(std::memory_order_seq_cst) != 0;
          return head_ - tail_ < capacity_ || left || options_.abort->raised();
        },
        deadline, kSpinNanos);
    if (options_.abort->raised()) return Fail(AbortedStatus());
    if (left) return PeerLeft();
    if (!in_time) return TimedOut("the receiver to take a message");
    if (head_ - tail_ > capacity_) return Fail(absl::InternalError("ring overrun"));
    return absl::OkStatus();
  }

  std::uint64_t head_ = 0;                // what we wrote; published a piece at a time
  std::uint64_t tail_ = 0;                // as last seen
  AbortSignal::Registration abort_hook_;  // last: gone before what it wakes
};

class RingReceiver final : public RecvChannel, RingEnd {
 public:
  explicit RingReceiver(RingOptions options) : RingEnd(std::move(options)) {
    abort_hook_ = options_.abort->OnRaise([this] { header_.head_moved.WakeAfterAll(); });
  }
  ~RingReceiver() override {
    header_.receiver_left.store(1, std::memory_order_seq_cst);
    header_.tail_moved.Wake();
  }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    const std::int64_t deadline = Deadline();
    RETURN_IF_ERROR(AwaitBytes(sizeof(MessageHeader), deadline));
    MessageHeader message;
    std::memcpy(&message, bytes_ + tail_ % capacity_, sizeof(message));
    if (absl::Status status = CheckHeader(message, tag, data.size(), options_.channel);
        !status.ok()) {
      return Fail(std::move(status));
    }
    tail_ += sizeof(message);
    if (data.empty()) Publish();
    while (!data.empty()) {
      RETURN_IF_ERROR(AwaitBytes(1, deadline));
      const std::size_t offset = tail_ % capacity_;
      const std::size_t piece = std::min(
          {data.size(), kPieceBytes, capacity_ - offset, static_cast<std::size_t>(head_ - tail_)});
      std::memcpy(data.data(), bytes_ + offset, piece);
      data = data.subspan(piece);
      tail_ += data.empty() ? Padded(piece) : piece;
      Publish();
    }
    return absl::OkStatus();
  }

 private:
  void Publish() {
    header_.tail.store(tail_, std::memory_order_seq_cst);
    header_.tail_moved.Wake();
  }

  absl::Status AwaitBytes(std::uint64_t wanted, std::int64_t deadline) {
    if (head_ - tail_ >= wanted && !options_.abort->raised()) return absl::OkStatus();
    bool left = false;
    const bool in_time = header_.head_moved.Await(
        [&] {
          // The order matters: a message that a sender wrote before it left is still taken.
          left = header_.sender_left.load(std::memory_order_seq_cst) != 0;
          head_ = header_.head.load(std::memory_order_seq_cst);
          return head_ - tail_ >= wanted || left || options_.abort->raised();
        },
        deadline, kSpinNanos);
    if (options_.abort->raised()) return Fail(AbortedStatus());
    if (head_ - tail_ > capacity_) return Fail(absl::InternalError("ring overrun"));
    if (head_ - tail_ >= wanted) return absl::OkStatus();
    return in_time ? PeerLeft() : TimedOut("a message");
  }

  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
  AbortSignal::Registration abort_hook_;
};

}  // namespace

std::size_t RingCapacity(std::size_t max_message_bytes) {
  return std::clamp(std::bit_ceil(max_message_bytes + sizeof(MessageHeader)), kMinCapacity,
                    kMaxCapacity);
}

std::size_t RingBytes(std::size_t max_message_bytes) {
  return sizeof(RingHeader) + RingCapacity(max_message_bytes);
}

std::unique_ptr<SendChannel> MakeRingSender(RingOptions options) {
  return std::make_unique<RingSender>(std::move(options));
}

std::unique_ptr<RecvChannel> MakeRingReceiver(RingOptions options) {
  return std::make_unique<RingReceiver>(std::move(options));
}

}  // namespace takt::transport
