// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/host_stream.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/control/reports_serde.h"
#include "coordinator/rpc/conversations.h"
#include "coordinator/timeouts/timeouts.h"
#include "proto/host_frame.h"
#include "proto/writing_stream.h"

namespace takt::coordinator_rpc {
namespace {

using job::Cluster;
using Event = job::Coordinator::Event;

// At most this many frames wait for a relay that reads slowly.
constexpr std::size_t kMaxFrames = 1024;

// Writes frames to a host's stream. Thread-safe. It does nothing once the stream is finished.
class FrameWriter {
 public:
  virtual ~FrameWriter() = default;
  // Flush writes the gathered frames, joined where they fit into one.
  virtual void GatherFrame(v1::HostFrame frame) = 0;
  virtual void FlushFrames() = 0;
};

// Writes to one worker's stream within the stream of its host. It may outlive the stream of the
// host.
class RelayedStream {
 public:
  RelayedStream(std::weak_ptr<FrameWriter> writer, std::int64_t stream)
      : writer_(std::move(writer)), stream_(stream) {}
  // What is said is written at Flush.
  void Say(const google::protobuf::MessageLite& message) const {
    if (const auto writer = writer_.lock())
      writer->GatherFrame(FrameOf(stream_, message.SerializeAsString()));
  }
  void Flush() const {
    if (const auto writer = writer_.lock()) writer->FlushFrames();
  }
  void End(const absl::Status& status) const {
    if (const auto writer = writer_.lock()) writer->GatherFrame(EndFrame(stream_, status));
    Flush();
  }

 private:
  const std::weak_ptr<FrameWriter> writer_;
  const std::int64_t stream_;
};

class RelayedControl final : public job::WorkerSession {
 public:
  RelayedControl(RelayedStream stream, const job::Coordinator* coordinator)
      : stream_(std::move(stream)), coordinator_(coordinator) {}
  void Send(const control::Command& command) override {
    stream_.Say(ResponseOf(command, *coordinator_));
  }
  void Flush() override { stream_.Flush(); }
  void Close(const absl::Status& status) override { stream_.End(status); }

 private:
  const RelayedStream stream_;
  const job::Coordinator* const coordinator_;
};

class RelayedBulk final : public job::BulkSession {
 public:
  explicit RelayedBulk(RelayedStream stream) : stream_(std::move(stream)) {}
  void Acknowledge(const control::ReportsAcknowledged& acknowledged) override {
    stream_.Say(control::ToProto(acknowledged));
  }
  void Flush() override { stream_.Flush(); }
  void Close(const absl::Status& status) override { stream_.End(status); }

 private:
  const RelayedStream stream_;
};

template <class Conversation>
struct Worker {
  std::unique_ptr<Conversation> conversation;  // null once the stream was refused
  std::shared_ptr<typename Conversation::Session> session;
};

template <class Conversation>
class HostStream final : public WritingStream<HostReactor, v1::HostFrame>,
                         public FrameWriter,
                         public std::enable_shared_from_this<HostStream<Conversation>> {
 public:
  // Makes the conversation of a worker whose stream begins.
  using Begin = std::function<Worker<Conversation>(RelayedStream)>;

  HostStream(grpc::CallbackServerContext* context, job::Coordinator* coordinator, Begin begin)
      : WritingStream(context, kMaxFrames, timeouts::kStreamStall),
        coordinator_(coordinator),
        begin_(std::move(begin)) {}

  void Start() {
    KeepUntilDone(this->shared_from_this());
    this->StartRead(&frame_);
  }

  void GatherFrame(v1::HostFrame frame) override { this->Gather(std::move(frame)); }
  void FlushFrames() override { this->Flush(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      EndAll();
      FinishAfterWrites(absl::OkStatus());
      return;
    }
    if (!std::exchange(greeted_, true)) Push(v1::HostFrame());
    std::vector<Event> events;
    for (const v1::StreamPart& part : frame_.parts()) {
      if (const absl::Status status = Take(part, events); !status.ok()) {
        EndAll();
        return FinishAfterWrites(status);
      }
    }
    this->Flush();
    ReadAfter(std::move(events));
  }
  void OnCancel() override { Cut(absl::CancelledError("the stream of the host's relay ended")); }

 private:
  bool Join(v1::HostFrame& last, v1::HostFrame& next) override { return JoinFrames(last, next); }

  // Errors: the whole stream must end with them.
  absl::Status Take(const v1::StreamPart& part, std::vector<Event>& events) {
    auto found = workers_.find(part.stream());
    if (part.has_end()) {
      if (found != workers_.end()) {
        AddEnd(found->second, events);
        workers_.erase(found);
      }
      return absl::OkStatus();
    }
    if (found == workers_.end()) {
      if (workers_.size() == kMaxHostStreams) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a host has at most ", kMaxHostStreams, " streams of a kind"));
      }
      found =
          workers_
              .emplace(part.stream(), begin_(RelayedStream(this->weak_from_this(), part.stream())))
              .first;
    }
    Worker<Conversation>& worker = found->second;
    if (worker.conversation == nullptr) return absl::OkStatus();  // its end is on the way
    typename Conversation::Request request;
    if (!request.ParseFromString(part.message()))
      return absl::InvalidArgumentError("a part of a host's frame is not a message of its stream");
    absl::StatusOr<Event> event = worker.conversation->Take(request, worker.session);
    if (!event.ok()) {
      this->Gather(EndFrame(part.stream(), event.status()));
      worker.conversation.reset();
    } else if (*event) {
      events.push_back(*std::move(event));
    }
    return absl::OkStatus();
  }

  // The next frame is read after this one was decided on. A host that sends faster waits, and fills
  // no queue here.
  void ReadAfter(std::vector<Event> events) {
    if (events.empty()) {
      if (!ReadOn(&frame_)) EndAll();
      return;
    }
    coordinator_->Post([events = std::move(events), self = this->shared_from_this()](
                           Cluster& cluster, Moment now) {
      for (const Event& event : events) event(cluster, now);
      if (!self->ReadOn(&self->frame_)) self->EndAll();
    });
  }

  static void AddEnd(const Worker<Conversation>& worker, std::vector<Event>& events) {
    if (worker.conversation == nullptr) return;
    if (Event end = worker.conversation->End()) events.push_back(std::move(end));
  }

  void EndAll() {
    std::vector<Event> ends;
    for (const auto& [stream, worker] : workers_) AddEnd(worker, ends);
    workers_.clear();
    if (ends.empty()) return;
    coordinator_->Post([ends = std::move(ends)](Cluster& cluster, Moment now) {
      for (const Event& end : ends) end(cluster, now);
    });
  }

  job::Coordinator* const coordinator_;
  const Begin begin_;
  // Used by the reading side, one callback at a time, or by the deciding thread between two.
  v1::HostFrame frame_;
  bool greeted_ = false;
  std::map<std::int64_t, Worker<Conversation>> workers_;  // by stream
};

template <class Conversation>
HostReactor* Start(grpc::CallbackServerContext* context, job::Coordinator* coordinator,
                   typename HostStream<Conversation>::Begin begin) {
  auto stream = std::make_shared<HostStream<Conversation>>(context, coordinator, std::move(begin));
  stream->Start();
  return stream.get();
}

}  // namespace

HostReactor* StartHostControl(grpc::CallbackServerContext* context,
                              const HostStreamOptions& options) {
  return Start<ControlConversation>(
      context, options.coordinator, [options](RelayedStream stream) -> Worker<ControlConversation> {
        return {std::make_unique<ControlConversation>(options.coordinator, options.traces,
                                                      options.audit_entry,
                                                      job::SessionId(++*options.last_session)),
                std::make_shared<RelayedControl>(std::move(stream), options.coordinator)};
      });
}

HostReactor* StartHostBulk(grpc::CallbackServerContext* context, const HostStreamOptions& options) {
  return Start<BulkConversation>(
      context, options.coordinator, [options](RelayedStream stream) -> Worker<BulkConversation> {
        return {std::make_unique<BulkConversation>(options.coordinator, options.traces,
                                                   options.audit_entry),
                std::make_shared<RelayedBulk>(std::move(stream))};
      });
}

}  // namespace takt::coordinator_rpc
