// SPDX-License-Identifier: Apache-2.0
// Turns the messages of a worker's two streams into events of the cluster, whether a stream has a
// connection of its own (attachment_service.h) or is one of a host's streams (host_stream.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/job/session.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/attachment_service.pb.h"

namespace takt::coordinator_rpc {

// Returns the message for a command. It has the epoch of the coordinator.
v1::AttachResponse ResponseOf(const control::Command& command, const job::Coordinator& coordinator);

// Handles a worker's control stream. One caller at a time: the side that reads.
class ControlConversation final {
 public:
  using Request = v1::AttachRequest;
  using Session = job::WorkerSession;
  using Event = job::Coordinator::Event;

  // coordinator and traces are borrowed. traces: null if no traces are kept; then the worker is not
  // asked for its clock.
  ControlConversation(job::Coordinator* coordinator, traces::TraceKeeper* traces,
                      AuditEntry audit_entry, job::SessionId id);

  // Returns the event by which the deciding thread handles the message. session: where the answers
  // go. Errors: the stream must end with them.
  absl::StatusOr<Event> Take(const Request& request, const std::shared_ptr<Session>& session);
  // Returns the event by which the deciding thread handles the end of the stream.
  Event End() const;

 private:
  absl::StatusOr<Event> Hello(const std::optional<control::WorkerMessage>& message,
                              const std::shared_ptr<Session>& session);
  Event EventOf(control::WorkerMessage message, Session& session);
  std::int64_t SteadyNanos() const;
  void AddClock(const control::ClockAnswer& answer);
  void AskForClock(Session& session);

  AuditEntry audit_entry_;
  job::Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  const job::SessionId id_;
  std::int64_t num_heartbeats_ = 0;
  bool attached_ = false;
  std::string worker_, incarnation_;
};

// Handles a worker's bulk stream. One caller at a time: the side that reads.
class BulkConversation final {
 public:
  using Request = v1::StreamBulkRequest;
  using Session = job::BulkSession;
  using Event = job::Coordinator::Event;

  // As ControlConversation.
  BulkConversation(job::Coordinator* coordinator, traces::TraceKeeper* traces,
                   AuditEntry audit_entry);

  // Posts the message itself, because a coordinator with too much to do may refuse it, and returns
  // an empty event. Errors: the stream must end with them.
  absl::StatusOr<Event> Take(const Request& request, const std::shared_ptr<Session>& session);
  Event End() const { return {}; }

 private:
  absl::Status Hello(const std::optional<control::BulkMessage>& message,
                     const std::shared_ptr<Session>& session);
  // Each posts the message. Each returns false if the coordinator has too much to do.
  bool Forward(const control::BulkHello& hello, const std::shared_ptr<Session>& session);
  bool Forward(control::RankStepReport& report, const std::shared_ptr<Session>& session);
  bool Forward(control::CheckpointReport& report, const std::shared_ptr<Session>& session);
  bool Forward(const control::StepTrace& trace, const std::shared_ptr<Session>& session);
  bool Forward(control::LogLine& line, const std::shared_ptr<Session>& session);

  AuditEntry audit_entry_;
  job::Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  std::string worker_, incarnation_;
};

}  // namespace takt::coordinator_rpc
