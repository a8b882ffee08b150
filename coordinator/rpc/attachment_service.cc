// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/attachment_service.h"

#include <memory>
#include <utility>
#include <variant>

#include "common/access/decide.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "common/control/attachment_serde.h"
#include "common/control/reports_serde.h"
#include "coordinator/rpc/streams.h"

namespace takt::coordinator_rpc {
namespace {

using job::Cluster;
using job::Coordinator;

// At most so many messages wait for a peer that reads slowly.
constexpr std::size_t kMaxCommands = 256;
constexpr std::size_t kMaxAcknowledgements = 4096;
// A worker is asked for its clock at so many heartbeats of a stream, and then at every so many.
constexpr std::int64_t kFirstProbes = 8, kHeartbeatsPerProbe = 4;

// A worker's stream begins with the worker's name. The certificate must be of that name.
absl::Status MayBegin(AuditEntry& audit_entry, const std::string& worker) {
  audit_entry.subject = "worker/" + worker;
  absl::Status status = access::MaySpeakFor(audit_entry.who, worker);
  audit_entry.Write(status);
  return status;
}

using ControlReactor = grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>;

class ControlStream final : public WritingStream<ControlReactor, v1::AttachResponse>,
                            public job::WorkerSession,
                            public std::enable_shared_from_this<ControlStream> {
 public:
  ControlStream(grpc::CallbackServerContext* context, Coordinator* coordinator,
                traces::TraceKeeper* traces, AuditEntry audit_entry, job::SessionId id)
      : WritingStream(context, kMaxCommands),
        audit_entry_(std::move(audit_entry)),
        coordinator_(coordinator),
        traces_(traces),
        id_(id) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Send(const control::Command& command) override {
    v1::AttachResponse response = control::ToProto(command);
    response.set_epoch(coordinator_->epoch());
    Push(std::move(response));
  }
  void Close(const absl::Status& status) override { Cut(status); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (attached_) coordinator_->Post(Detach());
      FinishAfterWrites(absl::OkStatus());
    } else {
      std::optional<control::WorkerMessage> message = control::FromProto(request_);
      if (!attached_) {
        Hello(message);
      } else {
        Decide(message ? EventOf(*std::move(message)) : Nothing);
      }
    }
  }
  void OnCancel() override { Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  static void Nothing(Cluster&, Moment) {}

  void Hello(const std::optional<control::WorkerMessage>& message) {
    const auto* hello = message ? std::get_if<control::Hello>(&*message) : nullptr;
    if (hello == nullptr)
      return Cut(absl::InvalidArgumentError("the first message of Attach must be a Hello"));
    if (const absl::Status status = MayBegin(audit_entry_, hello->worker); !status.ok())
      return Cut(status);
    attached_ = true;
    worker_ = hello->worker;
    incarnation_ = hello->incarnation;
    Decide([hello = *hello, id = id_, self = shared_from_this()](Cluster& cluster, Moment now) {
      cluster.Attach(hello, id, self, now);
    });
  }

  // The next message is read after this one was decided on. A worker that sends faster waits, and
  // fills no queue here.
  void Decide(Coordinator::Event event) {
    coordinator_->Post(
        [event = std::move(event), self = shared_from_this()](Cluster& cluster, Moment now) {
          event(cluster, now);
          if (!self->ReadOn(&self->request_)) self->Detach()(cluster, now);
        });
  }

  Coordinator::Event EventOf(control::WorkerMessage message) {
    return std::visit(
        Overloaded{
            [](const control::Hello&) -> Coordinator::Event { return Nothing; },
            [&](control::Heartbeat& heartbeat) -> Coordinator::Event {
              AskForClock();
              return [heartbeat = std::move(heartbeat), id = id_](Cluster& cluster, Moment now) {
                cluster.Heartbeat(id, heartbeat, now);
              };
            },
            [&](control::JobUpdate& update) -> Coordinator::Event {
              return [update = std::move(update), id = id_](Cluster& cluster, Moment now) {
                cluster.Update(id, update, now);
              };
            },
            [&](const control::Leaving& leaving) -> Coordinator::Event {
              return [leaving, id = id_](Cluster& cluster, Moment now) {
                cluster.Leave(id, leaving.reason, now);
              };
            },
            [&](const control::CheckpointCommitted& answer) -> Coordinator::Event {
              return [answer, id = id_](Cluster& cluster, Moment now) {
                cluster.Committed(id, answer, now);
              };
            },
            [&](control::RankDescription& description) -> Coordinator::Event {
              return [description = std::move(description), id = id_](
                         Cluster& cluster, Moment now) { cluster.Described(id, description, now); };
            },
            [&](const control::CommandsRefused& refused) -> Coordinator::Event {
              return [refused, id = id_](Cluster& cluster, Moment now) {
                cluster.Refused(id, refused, now);
              };
            },
            [&](const control::ClockAnswer& answer) -> Coordinator::Event {
              AddClock(answer);
              return Nothing;
            }},
        message);
  }

  std::int64_t SteadyNanos() const { return absl::ToInt64Nanoseconds(coordinator_->now().steady); }

  void AddClock(const control::ClockAnswer& answer) {
    if (traces_ == nullptr) return;
    traces_->AddClock(worker_, incarnation_, answer.coordinator_nanos, answer.worker_nanos,
                      SteadyNanos());
  }

  // The first heartbeats make the comparison good soon. Later ones keep it good, and more questions
  // would be a third of all messages of a worker.
  void AskForClock() {
    if (traces_ == nullptr) return;
    const std::int64_t heartbeat = num_heartbeats_++;
    if (heartbeat >= kFirstProbes && heartbeat % kHeartbeatsPerProbe != 0) return;
    Send(control::ClockProbe{SteadyNanos()});
  }

  Coordinator::Event Detach() const {
    return
        [id = id_](Cluster& cluster, Moment now) { cluster.Detach(id, "its stream ended", now); };
  }

  AuditEntry audit_entry_;
  Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  const job::SessionId id_;
  // Used by the reading side, one callback at a time.
  v1::AttachRequest request_;
  std::int64_t num_heartbeats_ = 0;
  bool attached_ = false;
  std::string worker_, incarnation_;
};

using BulkReactor = grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>;

class BulkStream final : public WritingStream<BulkReactor, v1::StreamBulkResponse>,
                         public job::BulkSession,
                         public std::enable_shared_from_this<BulkStream> {
 public:
  BulkStream(grpc::CallbackServerContext* context, Coordinator* coordinator,
             traces::TraceKeeper* traces, AuditEntry audit_entry)
      : WritingStream(context, kMaxAcknowledgements),
        audit_entry_(std::move(audit_entry)),
        coordinator_(coordinator),
        traces_(traces) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Acknowledge(const control::ReportsAcknowledged& acknowledged) override {
    Push(control::ToProto(acknowledged));
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      FinishAfterWrites(absl::OkStatus());
    } else if (Handle()) {
      StartRead(&request_);
    }
  }
  void OnCancel() override { Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  // Returns false when the stream is over.
  bool Handle() {
    std::optional<control::BulkMessage> message = control::FromProto(request_);
    if (worker_.empty()) return Hello(message);
    if (!message || std::visit([&](auto& part) { return Forward(part); }, *message)) return true;
    Cut(absl::ResourceExhaustedError(
        "the coordinator has too much to do; connect again and resend"));
    return false;
  }

  bool Hello(const std::optional<control::BulkMessage>& message) {
    const auto* hello = message ? std::get_if<control::BulkHello>(&*message) : nullptr;
    if (hello == nullptr || hello->worker.empty()) {
      Cut(absl::InvalidArgumentError(
          "the first message of StreamBulk must be a BulkHello with the worker's name"));
      return false;
    }
    if (const absl::Status status = MayBegin(audit_entry_, hello->worker); !status.ok()) {
      Cut(status);
      return false;
    }
    worker_ = hello->worker;
    incarnation_ = hello->incarnation;
    coordinator_->Post([worker = worker_, incarnation = incarnation_, self = shared_from_this()](
                           Cluster& cluster, Moment) {
      if (absl::Status status = cluster.CheckAttached(worker, incarnation); !status.ok())
        self->Cut(status);
    });
    return true;
  }

  // Each returns false if the coordinator has too much to do.
  bool Forward(const control::BulkHello&) { return true; }
  bool Forward(control::RankStepReport& report) {
    return coordinator_->TryPost([worker = worker_, incarnation = incarnation_,
                                  report = std::move(report),
                                  self = shared_from_this()](Cluster& cluster, Moment) {
      cluster.Report(worker, incarnation, report, self);
    });
  }
  bool Forward(control::CheckpointReport& report) {
    return coordinator_->TryPost([worker = worker_, incarnation = incarnation_,
                                  report = std::move(report),
                                  self = shared_from_this()](Cluster& cluster, Moment) {
      cluster.ReportCheckpoint(worker, incarnation, report, self);
    });
  }
  bool Forward(const control::StepTrace& trace) {
    if (traces_ != nullptr) traces_->Add(worker_, incarnation_, trace.key, trace.trace);
    return true;
  }
  bool Forward(control::LogLine& line) {
    line.worker = worker_;
    return coordinator_->TryPost(
        [line = std::move(line)](Cluster& cluster, Moment) { cluster.AddLog(line); });
  }

  AuditEntry audit_entry_;
  Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  // Used by the reading side, one callback at a time.
  v1::StreamBulkRequest request_;
  std::string worker_, incarnation_;
};

}  // namespace

ControlReactor* AttachmentService::Attach(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<ControlStream>(
      context, coordinator_, traces_,
      guard_->AuditEntryOf(*context, MethodOf<v1::AttachmentService>("Attach"), ""),
      job::SessionId(++last_session_));
  stream->Begin();
  return stream.get();
}

BulkReactor* AttachmentService::StreamBulk(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<BulkStream>(
      context, coordinator_, traces_,
      guard_->AuditEntryOf(*context, MethodOf<v1::AttachmentService>("StreamBulk"), ""));
  stream->Begin();
  return stream.get();
}

}  // namespace takt::coordinator_rpc
