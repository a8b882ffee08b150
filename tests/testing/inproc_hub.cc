// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/inproc_hub.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/message_header.h"
#include "worker/transport/ring.h"

namespace takt::testing {

using transport::AbortedStatus;
using transport::AbortSignal;
using transport::ChannelKey;
using transport::DifferentSizes;
using transport::kCacheLine;
using transport::MakeRingReceiver;
using transport::MakeRingSender;
using transport::MonotonicNanos;
using transport::RecvChannel;
using transport::RingBytes;
using transport::RingHeader;
using transport::RingOptions;
using transport::SendChannel;
using transport::TimeoutStatus;
using transport::Transport;
using transport::TransportOptions;
using transport::WakeWord;

// Holds the rings by channel. Each is handed out twice, once for each end.
class InprocHubState {
 public:
  struct Meeting {
    std::shared_ptr<std::byte> memory;
    std::size_t max_bytes = 0;
    std::atomic<int> ends{0};
    WakeWord both_here;
  };

  std::shared_ptr<Meeting> Join(const std::string& key, std::size_t max_bytes) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Meeting>& meeting = meetings_[key];
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>();
      meeting->max_bytes = max_bytes;
      meeting->memory = {
          static_cast<std::byte*>(
              ::operator new(RingBytes(max_bytes), std::align_val_t(kCacheLine))),
          [](std::byte* memory) { ::operator delete(memory, std::align_val_t(kCacheLine)); }};
      std::memset(meeting->memory.get(), 0, sizeof(RingHeader));
    }
    return meeting;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;
};

namespace {

class InprocTransport final : public Transport {
 public:
  InprocTransport(TransportOptions options, std::shared_ptr<InprocHubState> hub)
      : options_(std::move(options)), hub_(std::move(hub)) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(RingOptions ring,
                     Meet(ChannelKey(options_.rank, peer, name),
                          absl::StrCat(name, " to rank ", peer.value()), max_bytes));
    return MakeRingSender(std::move(ring));
  }
  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(RingOptions ring,
                     Meet(ChannelKey(peer, options_.rank, name),
                          absl::StrCat(name, " from rank ", peer.value()), max_bytes));
    return MakeRingReceiver(std::move(ring));
  }
  void Abort() override { abort_->Raise(); }

 private:
  absl::StatusOr<RingOptions> Meet(const std::string& key, std::string channel,
                                   std::size_t max_bytes) {
    const std::shared_ptr<InprocHubState::Meeting> meeting = hub_->Join(key, max_bytes);
    if (meeting->max_bytes != max_bytes)
      return DifferentSizes(channel, max_bytes, meeting->max_bytes);
    meeting->ends.fetch_add(1);
    meeting->both_here.Wake();
    const auto hook = abort_->OnRaise([&] { meeting->both_here.Wake(); });
    const bool in_time = meeting->both_here.Await(
        [&] { return meeting->ends.load() >= 2 || abort_->raised(); },
        MonotonicNanos() + absl::ToInt64Nanoseconds(options_.connect_timeout), 0);
    if (abort_->raised()) return AbortedStatus();
    if (!in_time) {
      return TimeoutStatus(absl::StrCat("the peer to open channel ", channel),
                           options_.connect_timeout);
    }
    return RingOptions{.memory = meeting->memory,
                       .max_message_bytes = max_bytes,
                       .channel = std::move(channel),
                       .operation_timeout = options_.operation_timeout,
                       .abort = abort_};
  }

  const TransportOptions options_;
  const std::shared_ptr<InprocHubState> hub_;
  const std::shared_ptr<AbortSignal> abort_ = std::make_shared<AbortSignal>();
};

}  // namespace

InprocHub::InprocHub() : state_(std::make_shared<InprocHubState>()) {}
InprocHub::~InprocHub() = default;

std::unique_ptr<Transport> InprocHub::Connect(const TransportOptions& options) {
  return std::make_unique<InprocTransport>(options, state_);
}

}  // namespace takt::testing
