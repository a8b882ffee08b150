// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/uplink.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "proto/host_frame.h"

namespace takt::worker_rpc {
namespace {

// The ranks of a host end their steps together, and their heartbeats come together. So a frame
// waits for more messages, but no message waits longer than kGather.
constexpr absl::Duration kShortGather = absl::Milliseconds(2);  // if the last frame is long ago
constexpr absl::Duration kGather = absl::Milliseconds(10);      // from one frame to the next
// While this many bytes wait, nothing more is read from workers.
constexpr std::size_t kMostWaitingBytes = 1 << 20;

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status) || absl::IsUnimplemented(status);
}

}  // namespace

Uplink::Uplink(UplinkOptions options)
    : options_(std::move(options)), next_frame_(SteadyNow()), away_since_(next_frame_) {
  stream_ = std::make_unique<Frames>(options_.thread_name, Hooks());
}

Uplink::Frames::Hooks Uplink::Hooks() {
  return {.open = options_.open,
          .hello = [this] { return Hello(); },
          .next = [this] { return Next(); },
          .interrupt = [this] { Interrupt(); },
          .on_message = [this](const v1::HostFrame& frame) { OnFrame(frame); },
          .on_end = [this](const absl::Status& status) { return OnEnd(status); }};
}

void Uplink::Add(std::int64_t stream, const std::shared_ptr<Downlink>& worker) {
  absl::Status refused;
  bool resumes = false;
  {
    absl::MutexLock lock(&mutex_);
    if (given_up_) {
      refused = status_;
    } else if (streams_.size() >= kMaxHostStreams) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("the relay of this host carries ", kMaxHostStreams,
                       " streams of a kind, and no more; run fewer workers here, or some of them "
                       "without --relay"));
    } else {
      resumes = HasRoomLocked();
      streams_[stream] = {.worker = worker, .waits = !resumes};
    }
  }
  if (!refused.ok()) {
    worker->End(refused);
  } else if (resumes) {
    worker->Resume();
  }
}

bool Uplink::Push(std::int64_t stream, std::string message) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  found->second.begun = true;
  ++num_messages_;
  const std::size_t bytes = message.size();
  AddLocked(FrameOf(stream, std::move(message)), bytes);
  found->second.waits = !HasRoomLocked();
  return !found->second.waits;
}

void Uplink::Remove(std::int64_t stream) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  if (found->second.begun) AddLocked(EndFrame(stream, absl::OkStatus()), 0);
  streams_.erase(found);
}

absl::Status Uplink::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

Uplink::Counts Uplink::counts() const {
  absl::MutexLock lock(&mutex_);
  return {.streams = static_cast<std::int64_t>(streams_.size()),
          .messages = num_messages_,
          .frames = num_frames_};
}

bool Uplink::HasRoomLocked() const { return status_.ok() && bytes_ < kMostWaitingBytes; }

void Uplink::AddLocked(v1::HostFrame frame, std::size_t bytes) {
  if (frames_.empty() || !JoinFrames(frames_.back().frame, frame))
    frames_.push_back({.frame = std::move(frame)});
  frames_.back().bytes += bytes;
  bytes_ += bytes;
  changed_.SignalAll();
}

Uplink::Workers Uplink::TakeWaitingLocked() {
  Workers workers;
  if (!HasRoomLocked()) return workers;
  for (auto& [number, stream] : streams_) {
    if (std::exchange(stream.waits, false)) workers.push_back(stream.worker.lock());
  }
  std::erase(workers, nullptr);
  return workers;
}

std::shared_ptr<Downlink> Uplink::Find(std::int64_t stream) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? found->second.worker.lock() : nullptr;
}

std::optional<v1::HostFrame> Uplink::Hello() {
  if (options_.may_open && !options_.may_open()) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  interrupted_ = false;
  return v1::HostFrame();
}

std::optional<v1::HostFrame> Uplink::Next() {
  Workers resumed;
  Waiting next;
  {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return interrupted_ || !frames_.empty();
    };
    mutex_.Await(absl::Condition(&some));
    const auto full = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return interrupted_ || frames_.size() > 1;
    };
    changed_.AwaitFor(mutex_, absl::Condition(&full),
                      std::max(next_frame_ - SteadyNow(), kShortGather));
    if (interrupted_) return std::nullopt;
    next_frame_ = SteadyNow() + kGather;
    next = std::move(frames_.front());
    frames_.pop_front();
    bytes_ -= next.bytes;
    ++num_frames_;
    resumed = TakeWaitingLocked();
  }
  for (const auto& worker : resumed) worker->Resume();
  return std::move(next.frame);
}

void Uplink::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  changed_.SignalAll();
}

void Uplink::OnFrame(const v1::HostFrame& frame) {
  Workers resumed;
  bool is_first = false;
  {
    absl::MutexLock lock(&mutex_);
    is_first = !status_.ok();
    if (is_first) {
      status_ = absl::OkStatus();
      given_up_ = false;
      resumed = TakeWaitingLocked();
    }
  }
  if (is_first && options_.on_up) options_.on_up();
  for (const auto& worker : resumed) worker->Resume();
  for (const v1::StreamPart& part : frame.parts()) {
    const std::shared_ptr<Downlink> worker = Find(part.stream());
    if (worker == nullptr) continue;
    if (part.has_end()) {
      worker->End(StatusOf(part.end()));
    } else {
      worker->Deliver(part.message());
    }
  }
}

absl::Duration Uplink::OnEnd(const absl::Status& status) {
  const bool refused = IsRefusal(status);
  Workers begun, waiting;
  absl::Status why = absl::UnavailableError(
      absl::StrCat("the relay of this host has no coordinator: ", status.message()));
  {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) away_since_ = SteadyNow();
    status_ = why;
    given_up_ = refused || SteadyNow() - away_since_ >= options_.patience;
    frames_.clear();
    bytes_ = 0;
    for (auto it = streams_.begin(); it != streams_.end();) {
      const Stream& stream = it->second;
      if (!stream.begun && !given_up_) {
        ++it;
        continue;
      }
      (stream.begun ? begun : waiting).push_back(stream.worker.lock());
      it = streams_.erase(it);
    }
  }
  std::erase(begun, nullptr);
  std::erase(waiting, nullptr);
  for (const auto& worker : begun) worker->End(absl::OkStatus());
  for (const auto& worker : waiting) worker->End(why);
  if (options_.on_end) options_.on_end(status);
  return refused ? options_.refused_backoff : absl::ZeroDuration();
}

}  // namespace takt::worker_rpc
