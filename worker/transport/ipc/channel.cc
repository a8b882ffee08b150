// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/ipc/channel.h"

#include <pthread.h>

#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/handshake.h"
#include "worker/transport/message_header.h"

namespace takt::transport::ipc {
namespace {

// What the receiver does with the sender's memory.
//
//              Recv              Recv               helper
//   kIdle ------------> kCopying -----> kCopied ------------> kIdle   (the copy is done)
//     |                     `--------------------------------> kIdle   (Recv failed)
//     `---> kClosed      by the helper, when the sender asks for its memory or the channel ends
enum class Use : std::uint8_t { kIdle, kCopying, kCopied, kClosed };

class IpcReceiver final : public RecvChannel {
 public:
  IpcReceiver(ReceiverOptions options, std::unique_ptr<backend::Event> copied)
      : options_(std::move(options)), copied_(std::move(copied)), helper_([this] { Main(); }) {}
  ~IpcReceiver() override {
    ends_ = true;
    lease().Wake();
    helper_.join();
  }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    RETURN_IF_ERROR(failure());
    Place place;
    RETURN_IF_ERROR(options_.places->Recv(tag, std::as_writable_bytes(std::span(&place, 1))));
    if (absl::Status status =
            CheckHeader({.tag = tag, .size_bytes = place.bytes}, tag, data.size(), options_.name);
        !status.ok()) {
      return Fail(std::move(status));
    }
    Use use = Use::kIdle;
    if (!use_.compare_exchange_strong(use, Use::kCopying)) {
      return Fail(
          use == Use::kClosed
              ? absl::UnavailableError(absl::StrCat("channel ", options_.name, ": the peer left"))
              : absl::InternalError(absl::StrCat("channel ", options_.name,
                                                 ": a message before the last was taken")));
    }
    const absl::Status given = Give(place, data);
    tag_ = tag;
    use_ = given.ok() ? Use::kCopied : Use::kIdle;
    lease().Wake();
    return given.ok() ? given : Fail(given);
  }

  backend::Stream* stream() override { return options_.backend->stream(); }

 private:
  Borrower& lease() { return options_.memory->lease(); }

  absl::Status Give(const Place& place, std::span<std::byte> data) {
    RETURN_IF_ERROR(stream()->MakeRoom(2));
    if (!data.empty()) RETURN_IF_ERROR(options_.memory->Copy(place, data.data(), *stream()));
    return stream()->Record(*copied_);
  }

  // Tells the sender when its messages were copied, and closes its memory.
  void Main() {
    pthread_setname_np(pthread_self(), "takt-ipc");
    for (;;) {
      lease().Await([this] {
        return use_ == Use::kCopied || (use_ == Use::kIdle && (ends_ || lease().asked()));
      });
      if (use_ == Use::kCopied) {
        if (absl::Status told = TellTaken(); !told.ok()) Fail(std::move(told)).IgnoreError();
        continue;
      }
      Use idle = Use::kIdle;
      if (use_.compare_exchange_strong(idle, Use::kClosed)) break;
    }
    // After an abort a copy may still be under way.
    copied_->Wait().IgnoreError();
    options_.memory->Close();
  }

  absl::Status TellTaken() {
    const absl::Status copied = copied_->WaitUnless([this] { return options_.aborted->load(); });
    const MessageTag tag = tag_;
    use_ = Use::kIdle;  // before the sender is told, whose next message may be here at once
    if (absl::IsCancelled(copied)) return AbortedStatus();
    RETURN_IF_ERROR(copied);
    return options_.taken->Send(tag, {});
  }

  absl::Status failure() const {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }
  absl::Status Fail(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
    return status;
  }

  const ReceiverOptions options_;
  const std::unique_ptr<backend::Event> copied_;
  std::atomic<Use> use_ = Use::kIdle;
  std::atomic<bool> ends_ = false;
  MessageTag tag_;  // of the message that was copied; passed on by use_
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // sticks
  std::thread helper_;                            // last: it uses everything above
};

}  // namespace

IpcSender::~IpcSender() {
  if (options_.lender->TakeBack(options_.close_timeout)) return;
  const std::string reason = absl::StrCat("channel ", options_.name, ": after ",
                                          absl::FormatDuration(options_.close_timeout),
                                          " the peer still has the memory of this device open");
  Log(LogLevel::kError, "memory of the device cannot be given back", {{"reason", reason}});
  if (options_.on_stuck) options_.on_stuck(reason);
}

absl::Status IpcSender::Send(const MessageTag& tag, std::span<const std::byte> data) {
  RETURN_IF_ERROR(CheckFits(options_.name, data.size(), options_.max_bytes));
  Place place{.bytes = data.size()};
  for (const backend::SharedRegion& region : options_.regions) {
    const bool has =
        data.data() >= region.base && data.size() <= region.bytes &&
        static_cast<std::size_t>(data.data() - region.base) <= region.bytes - data.size();
    if (has) {
      place.offset = static_cast<std::uint64_t>(data.data() - region.base);
      break;
    }
    ++place.region;
  }
  if (place.region == options_.regions.size() && !data.empty()) {
    return absl::InternalError(absl::StrCat(
        "channel ", options_.name,
        ": a message lies in memory that the device reserved after the channel was opened"));
  }
  RETURN_IF_ERROR(options_.places->Send(tag, std::as_bytes(std::span(&place, 1))));
  return options_.taken->Recv(tag, {});
}

absl::Status OpenedMemory::Open(const std::string& handle, std::size_t bytes) {
  ASSIGN_OR_RETURN(const std::byte* const base, peers_.Open(handle));
  regions_.push_back({.base = base, .bytes = bytes});
  return absl::OkStatus();
}

absl::Status OpenedMemory::Copy(const Place& place, std::byte* to, backend::Stream& stream) const {
  const bool lies = place.region < regions_.size() && place.bytes <= regions_[place.region].bytes &&
                    place.offset <= regions_[place.region].bytes - place.bytes;
  if (!lies) return absl::InternalError("the peer sends what lies in none of its regions");
  return peers_.Copy(regions_[place.region].base + place.offset, {to, place.bytes}, stream);
}

void OpenedMemory::Close() {
  for (const Region& region : regions_) peers_.Close(region.base);
  regions_.clear();
  lease_->Return();
}

absl::StatusOr<std::unique_ptr<RecvChannel>> CreateIpcReceiver(ReceiverOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<backend::Event> copied,
                   options.backend->stream()->CreateEvent());
  return std::make_unique<IpcReceiver>(std::move(options), std::move(copied));
}

}  // namespace takt::transport::ipc
