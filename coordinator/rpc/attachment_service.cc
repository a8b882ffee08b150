// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/attachment_service.h"

#include <memory>
#include <utility>

#include "common/control/reports_serde.h"
#include "coordinator/rpc/conversations.h"
#include "coordinator/rpc/host_stream.h"
#include "coordinator/timeouts/timeouts.h"
#include "proto/writing_stream.h"

namespace takt::coordinator_rpc {
namespace {

using job::Cluster;
using job::Coordinator;

// At most so many messages wait for a peer that reads slowly.
constexpr std::size_t kMaxCommands = 256;
constexpr std::size_t kMaxAcknowledgements = 4096;

using ControlReactor = grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>;

class ControlStream final : public WritingStream<ControlReactor, v1::AttachResponse>,
                            public job::WorkerSession,
                            public std::enable_shared_from_this<ControlStream> {
 public:
  ControlStream(grpc::CallbackServerContext* context, Coordinator* coordinator,
                ControlConversation conversation)
      : WritingStream(context, kMaxCommands, timeouts::kStreamStall),
        coordinator_(coordinator),
        conversation_(std::move(conversation)) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Send(const control::Command& command) override { Push(ResponseOf(command, *coordinator_)); }
  void Close(const absl::Status& status) override { Cut(status); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      coordinator_->Post(conversation_.End());
      FinishAfterWrites(absl::OkStatus());
      return;
    }
    absl::StatusOr<Coordinator::Event> event = conversation_.Take(request_, shared_from_this());
    if (!event.ok()) return Cut(event.status());
    // The next message is read after this one was decided on. A worker that sends faster waits, and
    // fills no queue here.
    coordinator_->Post(
        [event = *std::move(event), self = shared_from_this()](Cluster& cluster, Moment now) {
          event(cluster, now);
          if (!self->ReadOn(&self->request_)) self->conversation_.End()(cluster, now);
        });
  }
  void OnCancel() override { Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  Coordinator* const coordinator_;
  // Used by the reading side, one callback at a time, or by the deciding thread between two.
  v1::AttachRequest request_;
  ControlConversation conversation_;
};

using BulkReactor = grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>;

class BulkStream final : public WritingStream<BulkReactor, v1::StreamBulkResponse>,
                         public job::BulkSession,
                         public std::enable_shared_from_this<BulkStream> {
 public:
  BulkStream(grpc::CallbackServerContext* context, BulkConversation conversation)
      : WritingStream(context, kMaxAcknowledgements, timeouts::kStreamStall),
        conversation_(std::move(conversation)) {}

  void Begin() {
    KeepUntilDone(shared_from_this());
    StartRead(&request_);
  }

  void Acknowledge(const control::ReportsAcknowledged& acknowledged) override {
    Push(control::ToProto(acknowledged));
  }
  void Close(const absl::Status& status) override { Cut(status); }

  void OnReadDone(bool ok) override {
    if (!ok) return FinishAfterWrites(absl::OkStatus());
    const absl::Status status = conversation_.Take(request_, shared_from_this()).status();
    if (!status.ok()) return Cut(status);
    static_cast<void>(ReadOn(&request_));  // a stream that is finished reads no more
  }
  void OnCancel() override { Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  // Used by the reading side, one callback at a time.
  v1::StreamBulkRequest request_;
  BulkConversation conversation_;
};

}  // namespace

ControlReactor* AttachmentService::Attach(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<ControlStream>(
      context, coordinator_,
      ControlConversation(
          coordinator_, traces_,
          guard_->AuditEntryOf(*context, MethodOf<v1::AttachmentService>("Attach"), ""),
          job::SessionId(++last_session_)));
  stream->Begin();
  return stream.get();
}

BulkReactor* AttachmentService::StreamBulk(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<BulkStream>(
      context, BulkConversation(coordinator_, traces_,
                                guard_->AuditEntryOf(
                                    *context, MethodOf<v1::AttachmentService>("StreamBulk"), "")));
  stream->Begin();
  return stream.get();
}

HostReactor* AttachmentService::AttachHost(grpc::CallbackServerContext* context) {
  return StartHostControl(context,
                          {.coordinator = coordinator_,
                           .traces = traces_,
                           .last_session = &last_session_,
                           .audit_entry = guard_->AuditEntryOf(
                               *context, MethodOf<v1::AttachmentService>("AttachHost"), "")});
}

HostReactor* AttachmentService::StreamHostBulk(grpc::CallbackServerContext* context) {
  return StartHostBulk(context,
                       {.coordinator = coordinator_,
                        .traces = traces_,
                        .last_session = &last_session_,
                        .audit_entry = guard_->AuditEntryOf(
                            *context, MethodOf<v1::AttachmentService>("StreamHostBulk"), "")});
}

}  // namespace takt::coordinator_rpc
