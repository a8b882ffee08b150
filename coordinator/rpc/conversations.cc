// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/conversations.h"

#include <utility>
#include <variant>

#include "common/access/decide.h"
#include "common/base/overloaded.h"
#include "common/control/attachment_serde.h"
#include "common/control/reports_serde.h"

namespace takt::coordinator_rpc {
namespace {

using job::Cluster;

// A worker is asked for its clock at the first kFirstProbes heartbeats of a stream, and later at
// every kHeartbeatsPerProbe-th one.
constexpr std::int64_t kFirstProbes = 8, kHeartbeatsPerProbe = 4;

// Checks that the caller may speak for the worker whose name begins the stream, and writes the
// audit entry.
absl::Status MayBegin(AuditEntry& audit_entry, const std::string& worker) {
  audit_entry.subject = "worker/" + worker;
  absl::Status status = access::MaySpeakFor(audit_entry.who, worker);
  audit_entry.Write(status);
  return status;
}

void Nothing(Cluster&, Moment) {}

}  // namespace

v1::AttachResponse ResponseOf(const control::Command& command,
                              const job::Coordinator& coordinator) {
  v1::AttachResponse response = control::ToProto(command);
  response.set_epoch(coordinator.epoch());
  return response;
}

ControlConversation::ControlConversation(job::Coordinator* coordinator, traces::TraceKeeper* traces,
                                         AuditEntry audit_entry, job::SessionId id)
    : audit_entry_(std::move(audit_entry)), coordinator_(coordinator), traces_(traces), id_(id) {}

absl::StatusOr<ControlConversation::Event> ControlConversation::Take(
    const Request& request, const std::shared_ptr<Session>& session) {
  std::optional<control::WorkerMessage> message = control::FromProto(request);
  if (!attached_) return Hello(message, session);
  return message ? EventOf(*std::move(message), *session) : Event(Nothing);
}

ControlConversation::Event ControlConversation::End() const {
  if (!attached_) return Nothing;
  return [id = id_](Cluster& cluster, Moment now) { cluster.Detach(id, "its stream ended", now); };
}

absl::StatusOr<ControlConversation::Event> ControlConversation::Hello(
    const std::optional<control::WorkerMessage>& message, const std::shared_ptr<Session>& session) {
  const auto* hello = message ? std::get_if<control::Hello>(&*message) : nullptr;
  if (hello == nullptr)
    return absl::InvalidArgumentError("the first message of Attach must be a Hello");
  if (absl::Status status = MayBegin(audit_entry_, hello->worker); !status.ok()) return status;
  attached_ = true;
  worker_ = hello->worker;
  incarnation_ = hello->incarnation;
  return Event([hello = *hello, id = id_, session](Cluster& cluster, Moment now) {
    cluster.Attach(hello, id, session, now);
  });
}

ControlConversation::Event ControlConversation::EventOf(control::WorkerMessage message,
                                                        Session& session) {
  return std::visit(
      Overloaded{
          [](const control::Hello&) -> Event { return Nothing; },
          [&](control::Heartbeat& heartbeat) -> Event {
            AskForClock(session);
            return [heartbeat = std::move(heartbeat), id = id_](Cluster& cluster, Moment now) {
              cluster.Heartbeat(id, heartbeat, now);
            };
          },
          [&](control::JobUpdate& update) -> Event {
            return [update = std::move(update), id = id_](Cluster& cluster, Moment now) {
              cluster.Update(id, update, now);
            };
          },
          [&](const control::Leaving& leaving) -> Event {
            return [leaving, id = id_](Cluster& cluster, Moment now) {
              cluster.Leave(id, leaving.reason, now);
            };
          },
          [&](const control::CheckpointCommitted& answer) -> Event {
            return [answer, id = id_](Cluster& cluster, Moment now) {
              cluster.Committed(id, answer, now);
            };
          },
          [&](control::RankDescription& description) -> Event {
            return [description = std::move(description), id = id_](Cluster& cluster, Moment now) {
              cluster.Described(id, description, now);
            };
          },
          [&](const control::CommandsRefused& refused) -> Event {
            return [refused, id = id_](Cluster& cluster, Moment now) {
              cluster.Refused(id, refused, now);
            };
          },
          [&](const control::ClockAnswer& answer) -> Event {
            AddClock(answer);
            return Nothing;
          }},
      message);
}

std::int64_t ControlConversation::SteadyNanos() const {
  return absl::ToInt64Nanoseconds(coordinator_->now().steady);
}

void ControlConversation::AddClock(const control::ClockAnswer& answer) {
  if (traces_ == nullptr) return;
  traces_->AddClock(worker_, incarnation_, answer.coordinator_nanos, answer.worker_nanos,
                    SteadyNanos());
}

// The questions at the first heartbeats soon make the comparison of clocks good. Later ones keep it
// good. If every heartbeat had one, the answers would be a third of a worker's messages.
void ControlConversation::AskForClock(Session& session) {
  if (traces_ == nullptr) return;
  const std::int64_t heartbeat = num_heartbeats_++;
  if (heartbeat >= kFirstProbes && heartbeat % kHeartbeatsPerProbe != 0) return;
  session.Send(control::ClockProbe{SteadyNanos()});
}

BulkConversation::BulkConversation(job::Coordinator* coordinator, traces::TraceKeeper* traces,
                                   AuditEntry audit_entry)
    : audit_entry_(std::move(audit_entry)), coordinator_(coordinator), traces_(traces) {}

absl::StatusOr<BulkConversation::Event> BulkConversation::Take(
    const Request& request, const std::shared_ptr<Session>& session) {
  std::optional<control::BulkMessage> message = control::FromProto(request);
  if (worker_.empty()) {
    if (absl::Status status = Hello(message, session); !status.ok()) return status;
    return Event();
  }
  const bool taken =
      !message || std::visit([&](auto& part) { return Forward(part, session); }, *message);
  if (taken) return Event();
  return absl::ResourceExhaustedError(
      "the coordinator has too much to do; connect again and resend");
}

absl::Status BulkConversation::Hello(const std::optional<control::BulkMessage>& message,
                                     const std::shared_ptr<Session>& session) {
  const auto* hello = message ? std::get_if<control::BulkHello>(&*message) : nullptr;
  if (hello == nullptr || hello->worker.empty()) {
    return absl::InvalidArgumentError(
        "the first message of StreamBulk must be a BulkHello with the worker's name");
  }
  if (absl::Status status = MayBegin(audit_entry_, hello->worker); !status.ok()) return status;
  worker_ = hello->worker;
  incarnation_ = hello->incarnation;
  coordinator_->Post(
      [worker = worker_, incarnation = incarnation_, session](Cluster& cluster, Moment) {
        if (absl::Status status = cluster.CheckAttached(worker, incarnation); !status.ok())
          session->Close(status);
      });
  return absl::OkStatus();
}

bool BulkConversation::Forward(const control::BulkHello&, const std::shared_ptr<Session>&) {
  return true;
}

bool BulkConversation::Forward(control::RankStepReport& report,
                               const std::shared_ptr<Session>& session) {
  return coordinator_->TryPost(
      [worker = worker_, incarnation = incarnation_, report = std::move(report), session](
          Cluster& cluster, Moment) { cluster.Report(worker, incarnation, report, session); });
}

bool BulkConversation::Forward(control::CheckpointReport& report,
                               const std::shared_ptr<Session>& session) {
  return coordinator_->TryPost([worker = worker_, incarnation = incarnation_,
                                report = std::move(report), session](Cluster& cluster, Moment) {
    cluster.ReportCheckpoint(worker, incarnation, report, session);
  });
}

bool BulkConversation::Forward(const control::StepTrace& trace, const std::shared_ptr<Session>&) {
  if (traces_ != nullptr) traces_->Add(worker_, incarnation_, trace.key, trace.trace);
  return true;
}

bool BulkConversation::Forward(control::LogLine& line, const std::shared_ptr<Session>&) {
  line.worker = worker_;
  return coordinator_->TryPost(
      [line = std::move(line)](Cluster& cluster, Moment) { cluster.AddLog(line); });
}

}  // namespace takt::coordinator_rpc
