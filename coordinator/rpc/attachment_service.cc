// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/attachment_service.h"

#include <memory>
#include <utility>

#include "common/access/decide.h"
#include "common/base/status.h"
#include "coordinator/rpc/streams.h"
#include "coordinator/store/record_serde.h"

namespace takt::coordinator_rpc {
namespace {

using job::Cluster;
using job::Coordinator;

// Messages that may wait for a peer that is slow to read.
constexpr std::size_t kMaxCommands = 256;
constexpr std::size_t kMaxAcknowledgements = 4096;

// A worker's stream begins with its name, which must be its own.
absl::Status MayBegin(Deed& deed, const std::string& worker) {
  deed.subject = "worker/" + worker;
  absl::Status status = access::MaySpeakFor(deed.who, worker);
  deed.Audit(status);
  return status;
}

using ControlReactor = grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>;

class ControlStream final : public WritingStream<ControlReactor, v1::AttachResponse>,
                            public job::WorkerSession,
                            public std::enable_shared_from_this<ControlStream> {
 public:
  ControlStream(grpc::CallbackServerContext* context, Coordinator* coordinator,
                traces::TraceKeeper* traces, Deed deed, Timing timing, job::SessionId id)
      : WritingStream(context, kMaxCommands),
        deed_(std::move(deed)),
        coordinator_(coordinator),
        traces_(traces),
        timing_(timing),
        id_(id) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Send(const job::Command& command) override { Push(ToProto(command, timing_)); }
  void Close(const absl::Status& status) override { Cut(status); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (attached_) coordinator_->Post(Detach());
      FinishAfterWrites(absl::OkStatus());
    } else if (!attached_) {
      Hello();
    } else {
      Decide(EventOf(request_));
    }
  }
  void OnCancel() override { Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  void Hello() {
    if (!request_.has_hello())
      return Cut(absl::InvalidArgumentError("the first message of Attach must be a Hello"));
    const v1::Hello& hello = request_.hello();
    if (const absl::Status status = MayBegin(deed_, hello.worker()); !status.ok())
      return Cut(status);
    attached_ = true;
    worker_ = hello.worker();
    incarnation_ = hello.incarnation();
    Decide([hello = FromProto(hello), id = id_, self = shared_from_this()](
               Cluster& cluster, Moment now) { cluster.Attach(hello, id, self, now); });
  }

  // The next message is read when this one was decided on: who sends faster than that waits, and
  // fills no queue here.
  void Decide(Coordinator::Event event) {
    coordinator_->Post(
        [event = std::move(event), self = shared_from_this()](Cluster& cluster, Moment now) {
          event(cluster, now);
          if (!self->ReadOn(&self->request_)) self->Detach()(cluster, now);
        });
  }

  Coordinator::Event EventOf(const v1::AttachRequest& request) {
    switch (request.message_case()) {
      case v1::AttachRequest::kHeartbeat:
        AskForClock();
        return [status = FromProto(request.heartbeat()), id = id_](Cluster& cluster, Moment now) {
          cluster.Heartbeat(id, status, now);
        };
      case v1::AttachRequest::kUpdate:
        return [update = FromProto(request.update()), id = id_](Cluster& cluster, Moment now) {
          if (update) cluster.Update(id, *update, now);
        };
      case v1::AttachRequest::kLeaving:
        return [reason = request.leaving().reason(), id = id_](Cluster& cluster, Moment now) {
          cluster.Leave(id, reason, now);
        };
      case v1::AttachRequest::kCommitted:
        return [answer = FromProto(request.committed()), id = id_](Cluster& cluster, Moment now) {
          cluster.Committed(id, answer, now);
        };
      case v1::AttachRequest::kClock:
        AddClock(request.clock());
        break;
      case v1::AttachRequest::kHello:
      case v1::AttachRequest::MESSAGE_NOT_SET:
        break;
    }
    return [](Cluster&, Moment) {};
  }

  std::int64_t SteadyNanos() const { return absl::ToInt64Nanoseconds(coordinator_->now().steady); }

  void AddClock(const v1::ClockAnswer& answer) {
    if (traces_ == nullptr) return;
    traces_->AddClock(worker_, incarnation_, answer.coordinator_nanos(), answer.worker_nanos(),
                      SteadyNanos());
  }

  void AskForClock() {
    if (traces_ == nullptr) return;
    v1::AttachResponse response;
    response.mutable_clock()->set_coordinator_nanos(SteadyNanos());
    Push(std::move(response));
  }

  Coordinator::Event Detach() const {
    return
        [id = id_](Cluster& cluster, Moment now) { cluster.Detach(id, "its stream ended", now); };
  }

  Deed deed_;
  Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  const Timing timing_;
  const job::SessionId id_;
  // Of the reading side, one callback at a time.
  v1::AttachRequest request_;
  bool attached_ = false;
  std::string worker_, incarnation_;
};

using BulkReactor = grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>;

class BulkStream final : public WritingStream<BulkReactor, v1::StreamBulkResponse>,
                         public job::BulkSession,
                         public std::enable_shared_from_this<BulkStream> {
 public:
  BulkStream(grpc::CallbackServerContext* context, Coordinator* coordinator,
             traces::TraceKeeper* traces, Deed deed)
      : WritingStream(context, kMaxAcknowledgements),
        deed_(std::move(deed)),
        coordinator_(coordinator),
        traces_(traces) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Acknowledge(const job::JobKey& key, std::int64_t sequence) override {
    v1::StreamBulkResponse response;
    response.set_job(key.job);
    response.set_generation(key.generation.value());
    response.set_acknowledged_sequence(sequence);
    Push(std::move(response));
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
  // False: the stream is over.
  bool Handle() {
    if (worker_.empty()) {
      if (!request_.has_hello() || request_.hello().worker().empty()) {
        Cut(absl::InvalidArgumentError(
            "the first message of StreamBulk must be a BulkHello with the worker's name"));
        return false;
      }
      if (const absl::Status status = MayBegin(deed_, request_.hello().worker()); !status.ok()) {
        Cut(status);
        return false;
      }
      worker_ = request_.hello().worker();
      incarnation_ = request_.hello().incarnation();
      coordinator_->Post([worker = worker_, incarnation = incarnation_, self = shared_from_this()](
                             Cluster& cluster, Moment) {
        if (absl::Status status = cluster.CheckAttached(worker, incarnation); !status.ok())
          self->Cut(status);
      });
      return true;
    }
    if (Forward()) return true;
    Cut(absl::ResourceExhaustedError(
        "the coordinator has too much to do; connect again and resend"));
    return false;
  }

  bool Forward() {
    if (request_.has_step()) {
      const v1::RankStepReport& step = request_.step();
      return coordinator_->TryPost([worker = worker_, incarnation = incarnation_,
                                    key = job::JobKey{step.job(), Generation(step.generation())},
                                    report = FromProto(step),
                                    self = shared_from_this()](Cluster& cluster, Moment) {
        cluster.Report(worker, incarnation, key, report, self);
      });
    }
    if (request_.has_checkpoint()) {
      const v1::CheckpointReport& report = request_.checkpoint();
      return coordinator_->TryPost(
          [worker = worker_, incarnation = incarnation_,
           key = job::JobKey{report.job(), Generation(report.generation())},
           report = FromProto(report), self = shared_from_this()](Cluster& cluster, Moment) {
            cluster.ReportCheckpoint(worker, incarnation, key, report, self);
          });
    }
    if (request_.has_trace() && traces_ != nullptr) {
      const v1::StepTrace& trace = request_.trace();
      traces_->Add(worker_, incarnation_, {trace.job(), Generation(trace.generation())},
                   trace.trace());
      return true;
    }
    if (request_.has_log()) {
      store::LogRecord line = store::FromProto(request_.log(), /*job_id=*/"");
      line.worker = worker_;
      return coordinator_->TryPost([job = request_.job(), line = std::move(line)](
                                       Cluster& cluster, Moment) { cluster.AddLog(job, line); });
    }
    return true;
  }

  Deed deed_;
  Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  // Of the reading side, one callback at a time.
  v1::StreamBulkRequest request_;
  std::string worker_, incarnation_;
};

}  // namespace

ControlReactor* AttachmentService::Attach(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<ControlStream>(
      context, coordinator_, traces_,
      guard_->DeedOf(*context, MethodOf<v1::AttachmentService>("Attach"), ""), timing_,
      job::SessionId(++last_session_));
  stream->Begin();
  return stream.get();
}

BulkReactor* AttachmentService::StreamBulk(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<BulkStream>(
      context, coordinator_, traces_,
      guard_->DeedOf(*context, MethodOf<v1::AttachmentService>("StreamBulk"), ""));
  stream->Begin();
  return stream.get();
}

}  // namespace takt::coordinator_rpc
