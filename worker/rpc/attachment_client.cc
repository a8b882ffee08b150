// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/attachment_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/device_serde.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/rpc/endpoint.h"
#include "worker/rpc/attachment_serde.h"

namespace takt::rpc {
namespace {

// A coordinator of another version, or one that does not let this worker in, is asked again only
// rarely.
constexpr absl::Duration kRefusedBackoff = absl::Seconds(10);
constexpr absl::Duration kLastWords = absl::Seconds(1);

session::JobKey Key(const std::string& job, std::int64_t generation) {
  return {job, Generation(generation)};
}

}  // namespace

AttachmentClient::AttachmentClient(AttachmentOptions options, session::Agent& agent)
    : options_(std::move(options)),
      agent_(agent),
      stub_(v1::AttachmentService::NewStub(options_.channel)) {
  control_ = std::make_unique<ControlStream>("takt-control", ControlHooks());
  bulk_ = std::make_unique<BulkStream>("takt-bulk", BulkHooks());
}

AttachmentClient::~AttachmentClient() {
  outbox_.AwaitWritten(kLastWords);
  bulk_->Stop();
  control_->Stop();
}

void AttachmentClient::Send(const session::JobUpdate& update) {
  v1::AttachRequest request;
  *request.mutable_update() = ToProto(update, options_.worker);
  outbox_.Add(std::move(request));
}

void AttachmentClient::Send(const session::CommitAnswer& answer) {
  v1::AttachRequest request;
  *request.mutable_committed() = ToProto(answer);
  outbox_.Add(std::move(request));
}

bool AttachmentClient::SendLeaving(const std::string& reason) {
  v1::AttachRequest request;
  request.mutable_leaving()->set_reason(reason);
  return outbox_.Add(std::move(request));
}

absl::Status AttachmentClient::attachment() const {
  const absl::MutexLock lock(&mutex_);
  return attachment_;
}

void AttachmentClient::SetAttachment(absl::Status status) {
  const absl::MutexLock lock(&mutex_);
  attachment_ = std::move(status);
}

AttachmentClient::ControlStream::Hooks AttachmentClient::ControlHooks() {
  return {
      .open = [this](grpc::ClientContext* context) { return stub_->Attach(context); },
      .hello = [this] { return Hello(); },
      .next = [this]() -> std::optional<v1::AttachRequest> {
        std::optional<v1::AttachRequest> request = outbox_.Next();
        if (request.has_value() && request->message_case() == v1::AttachRequest::MESSAGE_NOT_SET)
          return Heartbeat();
        return request;
      },
      .interrupt = [this] { outbox_.Interrupt(); },
      .on_message = [this](const v1::AttachResponse& response) { OnCommand(response); },
      .on_end = [this](const absl::Status& status) { return OnControlEnd(status); }};
}

AttachmentClient::BulkStream::Hooks AttachmentClient::BulkHooks() {
  return {.open = [this](grpc::ClientContext* context) { return stub_->StreamBulk(context); },
          .hello = [this]() -> std::optional<v1::StreamBulkRequest> {
            if (!outbox_.welcomed()) return std::nullopt;
            agent_.outbox().Rewind();
            v1::StreamBulkRequest request;
            request.mutable_hello()->set_worker(options_.worker);
            request.mutable_hello()->set_incarnation(options_.incarnation);
            return request;
          },
          .next = [this]() -> std::optional<v1::StreamBulkRequest> {
            const auto item = agent_.outbox().Next();
            if (!item.has_value()) return std::nullopt;
            return ToProto(*item, options_.worker);
          },
          .interrupt = [this] { agent_.outbox().Interrupt(); },
          .on_message =
              [this](const v1::StreamBulkResponse& response) {
                agent_.AcknowledgeReports(Key(response.job(), response.generation()),
                                          response.acknowledged_sequence());
              },
          .on_end = [](const absl::Status&) { return absl::ZeroDuration(); }};
}

v1::AttachRequest AttachmentClient::Hello() {
  outbox_.Begin();
  v1::AttachRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_worker(options_.worker);
  hello.set_incarnation(options_.incarnation);
  hello.set_protocol_version(kProtocolVersion);
  hello.set_program_version(kTaktVersion);
  hello.set_host(options_.host);
  hello.set_cores(options_.cores);
  hello.set_memory_bytes(options_.memory_bytes);
  hello.set_matmul_flops_per_second(options_.matmul_flops_per_second);
  hello.set_data_address(options_.data_address);
  if (options_.device) *hello.mutable_device() = takt::ToProto(*options_.device);
  hello.set_has_nccl(options_.has_nccl);
  if (const auto held = agent_.held(); held.has_value()) {
    v1::RunningJob& running = *hello.mutable_running();
    running.set_job(held->key.job);
    running.set_generation(held->key.generation.value());
    running.set_rank(held->rank.value());
    running.set_last_step(held->status.last_step.value());
  }
  return request;
}

v1::AttachRequest AttachmentClient::Heartbeat() const {
  v1::AttachRequest request;
  v1::Heartbeat& heartbeat = *request.mutable_heartbeat();
  if (const auto held = agent_.held(); held.has_value()) {
    *heartbeat.mutable_status() = ToProto(held->status, held->rank, options_.worker);
    heartbeat.set_job(held->key.job);
    heartbeat.set_generation(held->key.generation.value());
  }
  return request;
}

void AttachmentClient::OnCommand(const v1::AttachResponse& response) {
  switch (response.message_case()) {
    case v1::AttachResponse::kWelcome: {
      const v1::Welcome& welcome = response.welcome();
      outbox_.Welcomed(absl::Seconds(welcome.heartbeat_seconds()));
      trouble_.Over();
      Log(LogLevel::kInfo, "attached", {{"coordinator_version", welcome.program_version()}});
      SetAttachment(absl::OkStatus());
      agent_.Attached();
      if (options_.on_attached) options_.on_attached();
      return;
    }
    case v1::AttachResponse::kPrepare: {
      auto assignment = std::make_shared<v1::Assignment>(
          response.prepare().assignment());  // shared: the call is copied
      agent_.Prepare(Key(assignment->job(), assignment->generation()), Rank(assignment->rank()),
                     [assignment] { return ToAssignment(*assignment); });
      return;
    }
    case v1::AttachResponse::kStart:
      agent_.Start(Key(response.start().job(), response.start().generation()));
      return;
    case v1::AttachResponse::kAbort:
      agent_.Abort(Key(response.abort().job(), response.abort().generation()),
                   response.abort().reason());
      return;
    case v1::AttachResponse::kAcknowledge:
      agent_.Acknowledge(Key(response.acknowledge().job(), response.acknowledge().generation()));
      return;
    case v1::AttachResponse::kHalt:
      agent_.Halt(Key(response.halt().job(), response.halt().generation()),
                  response.halt().reason());
      return;
    case v1::AttachResponse::kCommit:
      agent_.Commit(ToCommitRequest(response.commit()));
      return;
    case v1::AttachResponse::kClock: {
      v1::AttachRequest request;
      request.mutable_clock()->set_coordinator_nanos(response.clock().coordinator_nanos());
      request.mutable_clock()->set_worker_nanos(Clock::Real().SteadyNanos());
      outbox_.Add(std::move(request));
      return;
    }
    case v1::AttachResponse::MESSAGE_NOT_SET:
      return;  // a newer coordinator's: the protocol version allows what may be ignored
  }
}

absl::Duration AttachmentClient::OnControlEnd(const absl::Status& status) {
  SetAttachment(absl::UnavailableError(absl::StrCat("not attached: ", status.message())));
  agent_.Detached();
  const bool refused = absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
                       absl::IsUnauthenticated(status);
  if (trouble_.IsNews(status.code(), absl::Nanoseconds(Clock::Real().SteadyNanos()))) {
    const std::string tls = ExplainTlsFailure(std::string(status.message()), absl::Now());
    Log(refused ? LogLevel::kError : LogLevel::kWarning, "not attached; will try again",
        {{"error", tls.empty() ? status.ToString() : tls}});
  }
  if (!refused) return absl::ZeroDuration();
  agent_.Refused(std::string(status.message()));
  return kRefusedBackoff;
}

}  // namespace takt::rpc
