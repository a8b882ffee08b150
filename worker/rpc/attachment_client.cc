// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/attachment_client.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/overloaded.h"
#include "common/base/version.h"
#include "common/control/attachment_serde.h"
#include "common/control/reports_serde.h"
#include "common/rpc/endpoint.h"

namespace takt::worker_rpc {
namespace {

constexpr absl::Duration kLastWords = absl::Seconds(1);

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

control::RankStatus AttachmentClient::Signed(control::RankStatus status, Rank rank) const {
  status.rank = rank;
  status.worker = options_.hello.worker;
  return status;
}

void AttachmentClient::Send(const control::JobUpdate& update) {
  control::JobUpdate message = update;
  message.status = Signed(std::move(message.status), update.rank);
  outbox_.Add(std::move(message));
}

void AttachmentClient::Send(const control::CheckpointCommitted& answer) { outbox_.Add(answer); }

bool AttachmentClient::SendLeaving(const std::string& reason) {
  return outbox_.Add(control::Leaving{reason});
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
  return {.open = [this](grpc::ClientContext* context) { return stub_->Attach(context); },
          .hello = [this] { return control::ToProto(Hello()); },
          .next = [this]() -> std::optional<v1::AttachRequest> {
            std::optional<control::WorkerMessage> message = outbox_.Next();
            if (!message.has_value()) return std::nullopt;
            if (std::holds_alternative<control::Heartbeat>(*message)) message = Heartbeat();
            return control::ToProto(*message);
          },
          .interrupt = [this] { outbox_.Interrupt(); },
          .on_message =
              [this](const v1::AttachResponse& response) {
                // Commands that this program does not know may be ignored: the protocol version
                // promises that.
                if (auto command = control::FromProto(response)) OnCommand(*std::move(command));
              },
          .on_end = [this](const absl::Status& status) { return OnControlEnd(status); }};
}

AttachmentClient::BulkStream::Hooks AttachmentClient::BulkHooks() {
  return {.open = [this](grpc::ClientContext* context) { return stub_->StreamBulk(context); },
          .hello = [this]() -> std::optional<v1::StreamBulkRequest> {
            if (!outbox_.welcomed()) return std::nullopt;
            agent_.outbox().Rewind();
            return control::ToProto(
                control::BulkHello{options_.hello.worker, options_.hello.incarnation});
          },
          .next = [this]() -> std::optional<v1::StreamBulkRequest> {
            std::optional<control::BulkMessage> message = agent_.outbox().Next();
            if (!message.has_value()) return std::nullopt;
            if (auto* line = std::get_if<control::LogLine>(&*message))
              line->worker = options_.hello.worker;
            return control::ToProto(*message);
          },
          .interrupt = [this] { agent_.outbox().Interrupt(); },
          .on_message =
              [this](const v1::StreamBulkResponse& response) {
                const control::ReportsAcknowledged acknowledged = control::FromProto(response);
                agent_.AcknowledgeReports(acknowledged.key, acknowledged.sequence);
              },
          .on_end = [](const absl::Status&) { return absl::ZeroDuration(); }};
}

control::Hello AttachmentClient::Hello() {
  outbox_.Begin();
  control::Hello hello = options_.hello;
  hello.protocol_version = kProtocolVersion;
  hello.program_version = kTaktVersion;
  if (const auto held = agent_.held(); held.has_value()) {
    hello.running = {.key = held->key, .rank = held->rank, .last_step = held->status.last_step};
  }
  return hello;
}

control::Heartbeat AttachmentClient::Heartbeat() const {
  const auto held = agent_.held();
  if (!held.has_value()) return {};
  return {.key = held->key, .status = Signed(held->status, held->rank)};
}

void AttachmentClient::OnWelcome(const control::Welcome& welcome) {
  outbox_.Welcomed(welcome.heartbeat);
  trouble_.Over();
  Log(LogLevel::kInfo, "attached", {{"coordinator_version", welcome.program_version}});
  SetAttachment(absl::OkStatus());
  agent_.Attached();
  if (options_.on_attached) options_.on_attached();
}

void AttachmentClient::OnCommand(control::Command command) {
  std::visit(
      Overloaded{
          [&](const control::Welcome& welcome) { OnWelcome(welcome); },
          [&](control::Prepare& prepare) {
            agent_.Prepare(prepare.key, prepare.rank, std::move(prepare.assignment));
          },
          [&](const control::Start& start) { agent_.Start(start.key); },
          [&](const control::Abort& abort) { agent_.Abort(abort.key, abort.reason); },
          [&](const control::Acknowledge& acknowledge) {
            agent_.Acknowledge(acknowledge.key, acknowledge.keeps_copies);
          },
          [&](const control::Halt& halt) { agent_.Halt(halt.key, halt.reason); },
          [&](const control::CommitCheckpoint& commit) { agent_.Commit(commit); },
          [&](const control::ClockProbe& probe) {
            outbox_.Add(control::ClockAnswer{.coordinator_nanos = probe.coordinator_nanos,
                                             .worker_nanos = Clock::Real().SteadyNanos()});
          }},
      command);
}

absl::Duration AttachmentClient::OnControlEnd(const absl::Status& status) {
  SetAttachment(absl::UnavailableError(absl::StrCat("not attached: ", status.message())));
  agent_.Detached();
  const bool refused = absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
                       absl::IsUnauthenticated(status);
  if (trouble_.IsNews(status.code(), absl::Nanoseconds(Clock::Real().SteadyNanos()))) {
    const std::string tls = rpc::ExplainTlsFailure(std::string(status.message()), absl::Now());
    Log(refused ? LogLevel::kError : LogLevel::kWarning, "not attached; will try again",
        {{"error", tls.empty() ? status.ToString() : tls}});
  }
  return refused ? options_.refused_backoff : absl::ZeroDuration();
}

}  // namespace takt::worker_rpc
