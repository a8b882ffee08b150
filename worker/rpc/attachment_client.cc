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
    : options_(std::move(options)), agent_(agent) {
  // The control stream's thread uses the bulk stream.
  bulk_ = std::make_unique<BulkStream>("takt-bulk", BulkHooks());
  control_ = std::make_unique<ControlStream>("takt-control", ControlHooks());
  if (options_.channels->has_relay() && options_.ask_relay) WatchRelay();
}

AttachmentClient::~AttachmentClient() {
  relay_watch_.reset();
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

void AttachmentClient::Send(const control::RankDescription& description) {
  outbox_.Add(description);
}

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
  return {.open =
              [this](grpc::ClientContext* context) {
                control_stub_ = v1::AttachmentService::NewStub(options_.channels->control());
                return control_stub_->Attach(context);
              },
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
                if (auto command = control::FromProto(response))
                  OnCommand(response.epoch(), *std::move(command));
              },
          .on_end = [this](const absl::Status& status) { return OnControlEnd(status); }};
}

AttachmentClient::BulkStream::Hooks AttachmentClient::BulkHooks() {
  return {.open =
              [this](grpc::ClientContext* context) {
                const std::shared_ptr<grpc::Channel> channel = options_.channels->bulk();
                bulk_channel_ = channel.get();
                bulk_stub_ = v1::AttachmentService::NewStub(channel);
                return bulk_stub_->StreamBulk(context);
              },
          .hello = [this]() -> std::optional<v1::StreamBulkRequest> {
            // Reports are for the coordinator that the rank belongs to.
            if (!outbox_.welcomed() || !obeys_) return std::nullopt;
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
    hello.running = {.key = held->key,
                     .rank = held->rank,
                     .last_step = held->status.last_step,
                     .cluster_id = fence_.cluster_id(),
                     .describes = true};
  }
  return hello;
}

control::Heartbeat AttachmentClient::Heartbeat() const {
  const auto held = agent_.held();
  if (!held.has_value()) return {};
  return {.key = held->key, .status = Signed(held->status, held->rank)};
}

void AttachmentClient::WatchRelay() {
  relay_watch_ = std::make_unique<RelayWatch>(RelayWatchOptions{
      .is_away = [this] { return attachment().ok() && !options_.channels->through_relay(); },
      .ask = options_.ask_relay,
      .go_back =
          [this] {
            if (relay_refuses_) return;
            Log(LogLevel::kInfo, "the relay of this host is back");
            options_.channels->ReturnToRelay();
            control_->Restart();
          },
      .interval = options_.ask_relay_every});
}

void AttachmentClient::CountRefused(control::RefusalCause cause) const {
  if (options_.on_refused) options_.on_refused(cause);
}

void AttachmentClient::OnWelcome(const control::Welcome& welcome, std::int64_t epoch) {
  const std::optional<control::CommandsRefused> refused =
      fence_.Welcome(welcome.cluster_id, epoch, agent_.held().has_value());
  obeys_ = !refused.has_value();
  outbox_.Welcomed(welcome.heartbeat);
  trouble_.Over();
  // The bulk stream follows to another relay or coordinator.
  const grpc::Channel* const bulk = bulk_channel_;
  if (bulk != nullptr && bulk != options_.channels->bulk().get()) bulk_->Restart();
  if (options_.channels->has_relay() && !options_.channels->through_relay())
    Log(LogLevel::kWarning, "attached without the relay of this host");
  if (refused.has_value()) {
    Log(LogLevel::kError, "the commands of this coordinator are refused",
        {{"reason", refused->reason}, {"coordinator_version", welcome.program_version}});
    CountRefused(refused->cause);
    SetAttachment(absl::FailedPreconditionError(
        absl::StrCat("the coordinator is refused: ", refused->reason)));
    outbox_.Add(*refused);
    if (refused->cause == control::RefusalCause::kLaterEpoch) return;
  } else {
    Log(LogLevel::kInfo, "attached", {{"coordinator_version", welcome.program_version}});
    SetAttachment(absl::OkStatus());
  }
  agent_.Attached();  // how the rank stands is told to a coordinator that may adopt it, too
  if (!refused.has_value() && options_.on_attached) options_.on_attached();
}

void AttachmentClient::OnAdopt(const control::Adopt& adopt) {
  const auto held = agent_.held();
  if (!held.has_value() || held->key != adopt.key || !fence_.Adopt()) return;
  obeys_ = true;
  SetAttachment(absl::OkStatus());
  Log(LogLevel::kWarning, "the job was taken over by this coordinator",
      {{"job", adopt.key.job},
       {"generation", absl::StrCat(adopt.key.generation.value())},
       {"cluster", fence_.cluster_id()}});
  agent_.Adopted(adopt.key);
}

void AttachmentClient::OnCommand(std::int64_t epoch, control::Command command) {
  if (const auto* welcome = std::get_if<control::Welcome>(&command))
    return OnWelcome(*welcome, epoch);
  if (const auto* adopt = std::get_if<control::Adopt>(&command)) return OnAdopt(*adopt);
  const bool asks = std::holds_alternative<control::ClockProbe>(command) ||
                    std::holds_alternative<control::Describe>(command);
  if (asks || !fence_.Refuses(epoch)) return Obey(std::move(command));
  Log(LogLevel::kError, "command refused",
      {{"epoch", absl::StrCat(epoch)},
       {"highest_epoch", absl::StrCat(fence_.epoch())},
       {"cluster", fence_.cluster_id()}});
  CountRefused(obeys_ ? control::RefusalCause::kLaterEpoch : fence_.refusal());
}

void AttachmentClient::Obey(control::Command command) {
  std::visit(
      Overloaded{
          [](const control::Welcome&) {},  // OnCommand has these two
          [](const control::Adopt&) {},
          [&](control::Prepare& prepare) {
            agent_.Prepare(prepare.key, prepare.rank, std::move(prepare.assignment));
          },
          [&](const control::Start& start) { agent_.Start(start.key); },
          [&](const control::Abort& abort) { agent_.Abort(abort.key, abort.reason); },
          [&](const control::Acknowledge& acknowledge) {
            agent_.Acknowledge(acknowledge.key, acknowledge.keeps_copies);
          },
          [&](const control::Halt& halt) { agent_.Halt(halt.key, halt.reason, halt.in_memory); },
          [&](const control::CommitCheckpoint& commit) { agent_.Commit(commit); },
          [&](const control::Describe& describe) { agent_.Describe(describe, fence_.epoch()); },
          [&](const control::ClockProbe& probe) {
            outbox_.Add(control::ClockAnswer{.coordinator_nanos = probe.coordinator_nanos,
                                             .worker_nanos = Clock::Real().SteadyNanos()});
          }},
      command);
}

absl::Duration AttachmentClient::OnControlEnd(const absl::Status& end) {
  const bool through_relay = options_.channels->through_relay();
  const absl::Status status =
      !end.ok()
          ? end
          : absl::UnavailableError(through_relay ? "the relay of this host has lost the coordinator"
                                                 : "the coordinator has ended the stream");
  SetAttachment(absl::UnavailableError(absl::StrCat("not attached: ", status.message())));
  agent_.Detached();
  const std::string dialled = options_.channels->address();
  options_.channels->Ended(end);
  const bool not_allowed = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
  const bool refused = not_allowed || absl::IsFailedPrecondition(status);
  if (through_relay && not_allowed) relay_refuses_ = true;
  if (trouble_.IsNews(status.code(), SteadyNow())) {
    const std::string tls = rpc::ExplainTlsFailure(std::string(status.message()), absl::Now());
    Log(refused ? LogLevel::kError : LogLevel::kWarning, "not attached; will try again",
        {{"coordinator", dialled}, {"error", tls.empty() ? status.ToString() : tls}});
  }
  // After a relay the coordinator itself is dialled, which has refused nothing yet.
  return refused && !through_relay ? options_.refused_backoff : absl::ZeroDuration();
}

}  // namespace takt::worker_rpc
