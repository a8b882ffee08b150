// SPDX-License-Identifier: Apache-2.0
#include "common/control/attachment_serde.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/device_serde.h"
#include "common/base/field_error_serde.h"
#include "common/control/assignment_serde.h"
#include "common/control/job_key_serde.h"
#include "common/control/rank_status_serde.h"

namespace takt::control {
namespace {

void Write(const Hello& hello, v1::AttachRequest& request) {
  v1::Hello& proto = *request.mutable_hello();
  proto.set_worker(hello.worker);
  proto.set_incarnation(hello.incarnation);
  proto.set_protocol_version(hello.protocol_version);
  proto.set_program_version(hello.program_version);
  proto.set_host(hello.host);
  proto.set_processor(hello.processor);
  proto.set_cores(hello.cores);
  proto.set_threads(hello.threads);
  proto.set_memory_bytes(hello.memory_bytes);
  proto.set_matmul_flops_per_second(hello.matmul_rates.f32);
  proto.set_bf16_matmul_flops_per_second(hello.matmul_rates.bf16);
  proto.set_fp8_matmul_flops_per_second(hello.matmul_rates.fp8);
  proto.set_data_address(hello.data_address);
  if (hello.running.has_value()) {
    v1::RunningJob& running = *proto.mutable_running();
    SetKey(hello.running->key, running);
    running.set_rank(hello.running->rank.value());
    running.set_last_step(hello.running->last_step.value());
    running.set_cluster_id(hello.running->cluster_id);
    running.set_describes(hello.running->describes);
  }
  if (hello.device.has_value()) *proto.mutable_device() = takt::ToProto(*hello.device);
  proto.set_has_nccl(hello.has_nccl);
}

void Write(const Heartbeat& heartbeat, v1::AttachRequest& request) {
  v1::Heartbeat& proto = *request.mutable_heartbeat();
  SetKey(heartbeat.key, proto);
  if (heartbeat.status.has_value()) *proto.mutable_status() = ToProto(*heartbeat.status);
}

void Write(const JobUpdate& update, v1::AttachRequest& request) {
  v1::JobUpdate& proto = *request.mutable_update();
  SetKey(update.key, proto);
  proto.set_rank(update.rank.value());
  proto.set_phase(static_cast<v1::JobUpdate::Phase>(update.phase));
  proto.set_error(update.failure.error);
  proto.set_invalid_input(update.failure.invalid_input);
  if (!update.failure.violations.empty()) {
    *proto.mutable_detail()->mutable_violations() = takt::ToProto(update.failure.violations);
  }
  proto.set_cause(static_cast<v1::JobUpdate::Cause>(update.failure.cause));
  *proto.mutable_status() = ToProto(update.status);
  proto.set_resumed_step(update.resumed.step.value());
  proto.mutable_notes()->Add(update.resumed.notes.begin(), update.resumed.notes.end());
  proto.set_kernel_plan(update.resumed.kernel_plan);
  proto.set_from_memory(update.resumed.from_memory);
}

void Write(const Leaving& leaving, v1::AttachRequest& request) {
  request.mutable_leaving()->set_reason(leaving.reason);
}

void Write(const CheckpointCommitted& answer, v1::AttachRequest& request) {
  v1::CheckpointCommitted& proto = *request.mutable_committed();
  SetKey(answer.key, proto);
  proto.set_step(answer.step.value());
  proto.set_error(answer.error);
}

void Write(const ClockAnswer& answer, v1::AttachRequest& request) {
  v1::ClockAnswer& proto = *request.mutable_clock();
  proto.set_coordinator_nanos(answer.coordinator_nanos);
  proto.set_worker_nanos(answer.worker_nanos);
}

void Write(const CommandsRefused& refused, v1::AttachRequest& request) {
  v1::CommandsRefused& proto = *request.mutable_refused();
  proto.set_cause(static_cast<v1::CommandsRefused::Cause>(refused.cause));
  proto.set_reason(refused.reason);
}

void Write(const RankDescription& description, v1::AttachRequest& request) {
  v1::RankDescription& proto = *request.mutable_description();
  SetKey(description.key, proto);
  proto.set_rank(description.rank.value());
  proto.set_assignment_hash(description.assignment_hash);
  proto.set_acknowledged_step(description.acknowledged_step.value());
  proto.set_acknowledged_checkpoint(description.acknowledged_checkpoint.value());
  proto.set_epoch(description.epoch);
  proto.set_assignment(description.assignment);
  proto.set_schedule(description.schedule);
  proto.set_resumed_step(description.resumed.value());
  proto.set_from_memory(description.from_memory);
  proto.set_kernel_plan(description.kernel_plan);
  proto.set_saved_step(description.saved.value());
  proto.set_highest_generation(description.highest_generation.value());
  proto.set_directory_error(description.directory_error);
}

Hello Read(const v1::Hello& proto) {
  Hello hello{.worker = proto.worker(),
              .incarnation = proto.incarnation(),
              .protocol_version = proto.protocol_version(),
              .program_version = proto.program_version(),
              .host = proto.host(),
              .processor = proto.processor(),
              .cores = proto.cores(),
              .threads = proto.threads(),
              .memory_bytes = proto.memory_bytes(),
              .matmul_rates = {.f32 = proto.matmul_flops_per_second(),
                               .bf16 = proto.bf16_matmul_flops_per_second(),
                               .fp8 = proto.fp8_matmul_flops_per_second()},
              .data_address = proto.data_address(),
              .has_nccl = proto.has_nccl()};
  if (proto.has_running()) {
    hello.running = {.key = KeyOf(proto.running()),
                     .rank = Rank(proto.running().rank()),
                     .last_step = StepId(proto.running().last_step()),
                     .cluster_id = proto.running().cluster_id(),
                     .describes = proto.running().describes()};
  }
  if (proto.has_device()) hello.device = takt::FromProto(proto.device());
  return hello;
}

Heartbeat Read(const v1::Heartbeat& proto) {
  Heartbeat heartbeat{.key = KeyOf(proto)};
  if (proto.has_status()) heartbeat.status = FromProto(proto.status());
  return heartbeat;
}

// A cause that a later program added is not known here.
Cause CauseOf(const v1::JobUpdate& proto) {
  return v1::JobUpdate::Cause_IsValid(proto.cause()) ? static_cast<Cause>(proto.cause())
                                                     : Cause::kUnknown;
}

std::optional<JobUpdate> Read(const v1::JobUpdate& proto) {
  if (proto.phase() == v1::JobUpdate::PHASE_UNSPECIFIED ||
      !v1::JobUpdate::Phase_IsValid(proto.phase())) {
    return std::nullopt;
  }
  return JobUpdate{.key = KeyOf(proto),
                   .rank = Rank(proto.rank()),
                   .phase = static_cast<Phase>(proto.phase()),
                   .failure = {.error = proto.error(),
                               .invalid_input = proto.invalid_input(),
                               .violations = takt::FromProto(proto.detail().violations()),
                               .cause = CauseOf(proto)},
                   .status = FromProto(proto.status()),
                   .resumed = {.step = StepId(proto.resumed_step()),
                               .from_memory = proto.from_memory(),
                               .notes = {proto.notes().begin(), proto.notes().end()},
                               .kernel_plan = proto.kernel_plan()}};
}

// A cause that a later program added is not known here.
CommandsRefused Read(const v1::CommandsRefused& proto) {
  const bool known = v1::CommandsRefused::Cause_IsValid(proto.cause());
  return {.cause = known ? static_cast<RefusalCause>(proto.cause()) : RefusalCause::kUnknown,
          .reason = proto.reason()};
}

RankDescription Read(const v1::RankDescription& proto) {
  return {.key = KeyOf(proto),
          .rank = Rank(proto.rank()),
          .assignment_hash = proto.assignment_hash(),
          .acknowledged_step = StepId(proto.acknowledged_step()),
          .acknowledged_checkpoint = StepId(proto.acknowledged_checkpoint()),
          .epoch = proto.epoch(),
          .assignment = proto.assignment(),
          .schedule = proto.schedule(),
          .resumed = StepId(proto.resumed_step()),
          .from_memory = proto.from_memory(),
          .kernel_plan = proto.kernel_plan(),
          .saved = StepId(proto.saved_step()),
          .highest_generation = Generation(proto.highest_generation()),
          .directory_error = proto.directory_error()};
}

void Write(const Welcome& welcome, v1::AttachResponse& response) {
  v1::Welcome& proto = *response.mutable_welcome();
  proto.set_protocol_version(welcome.protocol_version);
  proto.set_program_version(welcome.program_version);
  proto.set_heartbeat_seconds(absl::ToDoubleSeconds(welcome.heartbeat));
  proto.set_lease_seconds(absl::ToDoubleSeconds(welcome.lease));
  proto.set_cluster_id(welcome.cluster_id);
}

void Write(const Prepare& prepare, v1::AttachResponse& response) {
  const absl::StatusOr<Assignment> assignment = prepare.assignment();
  TAKT_CHECK(assignment.ok());
  *response.mutable_prepare()->mutable_assignment() = ToProto(*assignment);
}

void Write(const Start& start, v1::AttachResponse& response) {
  SetKey(start.key, *response.mutable_start());
}

void Write(const Abort& abort, v1::AttachResponse& response) {
  SetKey(abort.key, *response.mutable_abort());
  response.mutable_abort()->set_reason(abort.reason);
}

void Write(const Acknowledge& acknowledge, v1::AttachResponse& response) {
  SetKey(acknowledge.key, *response.mutable_acknowledge());
  response.mutable_acknowledge()->set_keeps_copies(acknowledge.keeps_copies);
}

void Write(const Halt& halt, v1::AttachResponse& response) {
  SetKey(halt.key, *response.mutable_halt());
  response.mutable_halt()->set_reason(halt.reason);
  response.mutable_halt()->set_in_memory(halt.in_memory);
}

void Write(const CommitCheckpoint& commit, v1::AttachResponse& response) {
  v1::CommitCheckpoint& proto = *response.mutable_commit();
  SetKey(commit.key, proto);
  proto.set_step(commit.step.value());
  proto.set_directory(commit.directory);
  proto.set_keep(commit.keep);
  proto.set_manifest(commit.manifest);
  proto.set_resumed_step(commit.resumed.value());
  proto.set_job_id(commit.job_id);
  proto.set_epoch(commit.epoch);
}

void Write(const ClockProbe& probe, v1::AttachResponse& response) {
  response.mutable_clock()->set_coordinator_nanos(probe.coordinator_nanos);
}

void Write(const Describe& describe, v1::AttachResponse& response) {
  SetKey(describe.key, *response.mutable_describe());
  response.mutable_describe()->set_whole(describe.whole);
}

void Write(const Adopt& adopt, v1::AttachResponse& response) {
  SetKey(adopt.key, *response.mutable_adopt());
}

Welcome Read(const v1::Welcome& proto) {
  return {.protocol_version = proto.protocol_version(),
          .program_version = proto.program_version(),
          .heartbeat = absl::Seconds(proto.heartbeat_seconds()),
          .lease = absl::Seconds(proto.lease_seconds()),
          .cluster_id = proto.cluster_id()};
}

Prepare Read(v1::Prepare prepare) {
  // Shared, because a std::function can be copied.
  auto proto = std::make_shared<const v1::Assignment>(std::move(*prepare.mutable_assignment()));
  return {.key = KeyOf(*proto), .rank = Rank(proto->rank()), .assignment = [proto] {
            return FromProto(*proto);
          }};
}

CommitCheckpoint Read(const v1::CommitCheckpoint& proto) {
  return {.key = KeyOf(proto),
          .step = StepId(proto.step()),
          .directory = proto.directory(),
          .keep = std::max(1, proto.keep()),
          .manifest = proto.manifest(),
          .resumed = StepId(proto.resumed_step()),
          .job_id = proto.job_id(),
          .epoch = proto.epoch()};
}

}  // namespace

v1::AttachRequest ToProto(const WorkerMessage& message) {
  v1::AttachRequest request;
  std::visit([&](const auto& part) { Write(part, request); }, message);
  return request;
}

std::optional<WorkerMessage> FromProto(const v1::AttachRequest& proto) {
  switch (proto.message_case()) {
    case v1::AttachRequest::kHello:
      return Read(proto.hello());
    case v1::AttachRequest::kHeartbeat:
      return Read(proto.heartbeat());
    case v1::AttachRequest::kUpdate:
      return Read(proto.update());
    case v1::AttachRequest::kLeaving:
      return Leaving{proto.leaving().reason()};
    case v1::AttachRequest::kCommitted:
      return CheckpointCommitted{.key = KeyOf(proto.committed()),
                                 .step = StepId(proto.committed().step()),
                                 .error = proto.committed().error()};
    case v1::AttachRequest::kClock:
      return ClockAnswer{.coordinator_nanos = proto.clock().coordinator_nanos(),
                         .worker_nanos = proto.clock().worker_nanos()};
    case v1::AttachRequest::kRefused:
      return Read(proto.refused());
    case v1::AttachRequest::kDescription:
      return Read(proto.description());
    case v1::AttachRequest::MESSAGE_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

v1::AttachResponse ToProto(const Command& command) {
  v1::AttachResponse response;
  std::visit([&](const auto& part) { Write(part, response); }, command);
  return response;
}

std::optional<Command> FromProto(v1::AttachResponse proto) {
  switch (proto.message_case()) {
    case v1::AttachResponse::kWelcome:
      return Read(proto.welcome());
    case v1::AttachResponse::kPrepare:
      return Read(std::move(*proto.mutable_prepare()));
    case v1::AttachResponse::kStart:
      return Start{KeyOf(proto.start())};
    case v1::AttachResponse::kAbort:
      return Abort{KeyOf(proto.abort()), proto.abort().reason()};
    case v1::AttachResponse::kAcknowledge:
      return Acknowledge{KeyOf(proto.acknowledge()), proto.acknowledge().keeps_copies()};
    case v1::AttachResponse::kHalt:
      return Halt{KeyOf(proto.halt()), proto.halt().reason(), proto.halt().in_memory()};
    case v1::AttachResponse::kCommit:
      return Read(proto.commit());
    case v1::AttachResponse::kClock:
      return ClockProbe{proto.clock().coordinator_nanos()};
    case v1::AttachResponse::kDescribe:
      return Describe{KeyOf(proto.describe()), proto.describe().whole()};
    case v1::AttachResponse::kAdopt:
      return Adopt{KeyOf(proto.adopt())};
    case v1::AttachResponse::MESSAGE_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace takt::control
