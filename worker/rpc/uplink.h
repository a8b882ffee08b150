// SPDX-License-Identifier: Apache-2.0
// A stream from a host's relay to the coordinator. It carries the streams of the host's workers in
// frames (takt.v1.AttachmentService.AttachHost), and does not read their messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "worker/rpc/reconnecting_stream.h"

namespace takt::worker_rpc {

// A worker's stream, as its uplink sees it. It is thread-safe, never blocks, and does nothing once
// the stream has ended.
class Downlink {
 public:
  virtual ~Downlink() = default;
  // Reads the worker's next message.
  virtual void Resume() = 0;
  // Writes a message to the worker.
  virtual void Deliver(const std::string& message) = 0;
  // Ends the stream once all delivered messages are written. status: OK tells the worker to open it
  // again here.
  virtual void End(const absl::Status& status) = 0;
};

struct UplinkOptions {
  using Frames = grpc::ClientReaderWriter<v1::HostFrame, v1::HostFrame>;

  std::string thread_name;
  std::function<std::unique_ptr<Frames>(grpc::ClientContext*)> open;
  // Returns whether the stream may open now. If not, it is called again soon. Empty: the stream may
  // always open.
  std::function<bool()> may_open;
  // Called on the stream's thread when the coordinator has answered, and when the stream has ended.
  // They may be empty.
  std::function<void()> on_up;
  std::function<void(const absl::Status&)> on_end;
  // Workers wait at the relay for a coordinator that is away for at most this time. Then the relay
  // tells them to dial it themselves.
  absl::Duration patience = absl::Seconds(60);
  // The relay waits for this time before it tries a coordinator again that refused it.
  absl::Duration refused_backoff = absl::Seconds(10);
};

// Thread-safe. It connects, again and again, until it is stopped. When it has lost the coordinator,
// it ends the streams that have begun, so that their workers send their hellos again.
class Uplink final {
 public:
  explicit Uplink(UplinkOptions options);
  ~Uplink() { Stop(); }
  void Stop() { stream_->Stop(); }

  // Returns a number for a worker's stream. No other stream ever gets it.
  std::int64_t NewStream() { return ++last_stream_; }
  // Adds a worker's stream. Calls worker->Resume, now or when there is a coordinator, or
  // worker->End. It ends the streams beyond kMaxHostStreams, for which the coordinator would end
  // the streams of all.
  void Add(std::int64_t stream, const std::shared_ptr<Downlink>& worker);
  // Passes on a message of a worker. Returns whether the worker's next message may be read now. If
  // not, Resume is called later, or End was called already.
  bool Push(std::int64_t stream, std::string message);
  // Call it when a worker's stream is over, however it ended.
  void Remove(std::int64_t stream);

  // Returns OK while there is a coordinator, and otherwise why not.
  absl::Status status() const;
  struct Counts {
    std::int64_t streams = 0;               // now
    std::int64_t messages = 0, frames = 0;  // to the coordinator, ever
  };
  Counts counts() const;

 private:
  using Frames = ReconnectingStream<v1::HostFrame, v1::HostFrame>;
  using Workers = std::vector<std::shared_ptr<Downlink>>;

  struct Stream {
    std::weak_ptr<Downlink> worker;
    bool begun = false;  // the coordinator knows it
    bool waits = false;  // to resume
  };
  struct Waiting {
    v1::HostFrame frame;
    std::size_t bytes = 0;
  };

  Frames::Hooks Hooks();
  std::optional<v1::HostFrame> Hello();
  std::optional<v1::HostFrame> Next();
  void Interrupt();
  void OnFrame(const v1::HostFrame& frame);
  absl::Duration OnEnd(const absl::Status& status);

  bool HasRoomLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLocked(v1::HostFrame frame, std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Workers TakeWaitingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Downlink> Find(std::int64_t stream);

  const UplinkOptions options_;
  std::atomic<std::int64_t> last_stream_ = 0;
  // The destructor of a worker's stream may call Remove, so a reference to one must not be dropped
  // while this is held.
  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;
  std::map<std::int64_t, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiting> frames_ ABSL_GUARDED_BY(mutex_);
  std::size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of frames_
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration next_frame_ ABSL_GUARDED_BY(mutex_);  // steady
  absl::Duration away_since_ ABSL_GUARDED_BY(mutex_);  // steady
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;      // workers no longer wait here
  absl::Status status_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("the relay has no answer from the coordinator yet");
  std::int64_t num_messages_ ABSL_GUARDED_BY(mutex_) = 0, num_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Frames> stream_;  // last: its threads use everything above
};

}  // namespace takt::worker_rpc
