// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/convert.h"

#include "common/base/device_serde.h"
#include "common/base/field_error_serde.h"
#include "common/base/version.h"
#include "common/program/program_serde.h"
#include "coordinator/store/record_serde.h"

namespace takt::coordinator_rpc {
namespace {

v1::Assignment ToAssignment(const job::Launch& launch, Rank rank) {
  v1::Assignment out;
  out.set_job(launch.key.job);
  out.set_generation(launch.key.generation.value());
  out.set_rank(rank.value());
  out.mutable_spec()->ParseFromString(launch.spec);
  for (const mesh::Stage& stage : launch.plan.partition) {
    v1::StageAssignment* to = out.add_stages();
    to->set_stage(stage.id.value());
    to->set_pp_rank(stage.pp_rank.value());
    to->set_first_layer(stage.first_layer.value());
    to->set_last_layer(stage.last_layer.value());
    to->set_recompute(static_cast<v1::RecomputeMode>(stage.recompute));
  }
  const std::size_t pp_rank = launch.plan.mesh.PpRankOf(rank).value();
  *out.mutable_program() = program::ToProto(launch.plan.programs[pp_rank]);
  if (pp_rank < launch.plan.validation_programs.size()) {
    *out.mutable_validation_program() = program::ToProto(launch.plan.validation_programs[pp_rank]);
  }
  v1::Binding* binding = out.mutable_binding();
  for (const store::BoundRank& bound : launch.ranks) {
    v1::BoundRank* to = binding->add_ranks();
    to->set_rank(bound.rank.value());
    to->set_worker(bound.worker);
    to->set_incarnation(bound.incarnation);
    to->set_data_address(bound.data_address);
  }
  binding->set_pp_size(launch.plan.mesh.pp_size);
  binding->set_dp_size(launch.plan.mesh.dp_size);
  binding->set_threads(launch.threads[rank.value()]);
  binding->set_transport(static_cast<v1::TransportKind>(launch.transport));
  binding->set_device(static_cast<v1::DeviceKind>(launch.device));
  binding->set_secret(launch.secret);
  out.set_predicted_step_seconds(launch.plan.predicted_step_seconds);
  out.set_predicted_bubble_fraction(launch.plan.predicted_bubble_fraction);
  out.set_resume(launch.resume);
  out.set_resume_at_most(launch.resume_at_most.value());
  return out;
}

}  // namespace

membership::Hello FromProto(const v1::Hello& hello) {
  membership::Hello out{.worker = hello.worker(),
                        .incarnation = hello.incarnation(),
                        .protocol_version = hello.protocol_version(),
                        .program_version = hello.program_version(),
                        .host = hello.host(),
                        .cores = hello.cores(),
                        .memory_bytes = hello.memory_bytes(),
                        .matmul_flops_per_second = hello.matmul_flops_per_second(),
                        .data_address = hello.data_address(),
                        .has_nccl = hello.has_nccl()};
  if (hello.has_device()) out.device = takt::FromProto(hello.device());
  if (hello.has_running()) {
    out.running = membership::Hold{.job = hello.running().job(),
                                   .generation = Generation(hello.running().generation()),
                                   .rank = Rank(hello.running().rank())};
  }
  return out;
}

std::optional<job::JobUpdate> FromProto(const v1::JobUpdate& update) {
  job::JobUpdate out{.key = {update.job(), Generation(update.generation())},
                     .rank = Rank(update.rank()),
                     .error = update.error(),
                     .invalid_input = update.invalid_input(),
                     .violations = takt::FromProto(update.detail().violations()),
                     .resumed_step = StepId(update.resumed_step()),
                     .notes = {update.notes().begin(), update.notes().end()},
                     .kernel_plan = update.kernel_plan()};
  switch (update.phase()) {
    case v1::JobUpdate::PHASE_ADMITTED:
      out.phase = job::RankPhase::kAdmitted;
      break;
    case v1::JobUpdate::PHASE_REFUSED:
      out.phase = job::RankPhase::kRefused;
      break;
    case v1::JobUpdate::PHASE_FINISHED:
      out.phase = job::RankPhase::kFinished;
      break;
    case v1::JobUpdate::PHASE_HALTED:
      out.phase = job::RankPhase::kHalted;
      break;
    case v1::JobUpdate::PHASE_FAILED:
      out.phase = job::RankPhase::kFailed;
      break;
    case v1::JobUpdate::PHASE_ABORTED:
      out.phase = job::RankPhase::kAborted;
      break;
    default:
      return std::nullopt;
  }
  if (update.has_status()) out.status = store::FromProto(update.status());
  return out;
}

std::optional<job::JobUpdate> FromProto(const v1::Heartbeat& heartbeat) {
  if (heartbeat.job().empty() || !heartbeat.has_status()) return std::nullopt;
  return job::JobUpdate{.key = {heartbeat.job(), Generation(heartbeat.generation())},
                        .rank = Rank(heartbeat.status().rank()),
                        .status = store::FromProto(heartbeat.status())};
}

job::RankStepReport FromProto(const v1::RankStepReport& report) {
  job::RankStepReport out{.rank = Rank(report.rank()),
                          .sequence = report.sequence(),
                          .step = StepId(report.step()),
                          .loss = report.loss(),
                          .grad_norm = report.grad_norm(),
                          .learning_rate = report.learning_rate(),
                          .tokens = report.tokens(),
                          .step_seconds = report.step_seconds(),
                          .busy_seconds = report.busy_seconds()};
  if (report.has_validation_loss()) out.validation_loss = report.validation_loss();
  return out;
}

job::CheckpointReport FromProto(const v1::CheckpointReport& report) {
  job::CheckpointReport out{.rank = Rank(report.rank()),
                            .sequence = report.sequence(),
                            .step = StepId(report.step()),
                            .snapshot_seconds = report.snapshot_seconds(),
                            .write_seconds = report.write_seconds(),
                            .error = report.error()};
  for (const v1::CheckpointFile& file : report.files()) out.files.push_back(store::FromProto(file));
  return out;
}

job::CheckpointCommitted FromProto(const v1::CheckpointCommitted& answer) {
  return {.key = {answer.job(), Generation(answer.generation())},
          .step = StepId(answer.step()),
          .error = answer.error()};
}

v1::AttachResponse ToProto(const job::Command& command, const Timing& timing) {
  v1::AttachResponse out;
  if (std::holds_alternative<job::Welcome>(command)) {
    v1::Welcome* welcome = out.mutable_welcome();
    welcome->set_protocol_version(kProtocolVersion);
    welcome->set_program_version(kTaktVersion);
    welcome->set_heartbeat_seconds(absl::ToDoubleSeconds(timing.heartbeat));
    welcome->set_lease_seconds(absl::ToDoubleSeconds(timing.lease));
  } else if (const auto* prepare = std::get_if<job::Prepare>(&command)) {
    *out.mutable_prepare()->mutable_assignment() = ToAssignment(*prepare->launch, prepare->rank);
  } else if (const auto* start = std::get_if<job::Start>(&command)) {
    out.mutable_start()->set_job(start->key.job);
    out.mutable_start()->set_generation(start->key.generation.value());
  } else if (const auto* abort = std::get_if<job::Abort>(&command)) {
    out.mutable_abort()->set_job(abort->key.job);
    out.mutable_abort()->set_generation(abort->key.generation.value());
    out.mutable_abort()->set_reason(abort->reason);
  } else if (const auto* acknowledge = std::get_if<job::Acknowledge>(&command)) {
    out.mutable_acknowledge()->set_job(acknowledge->key.job);
    out.mutable_acknowledge()->set_generation(acknowledge->key.generation.value());
  } else if (const auto* halt = std::get_if<job::Halt>(&command)) {
    out.mutable_halt()->set_job(halt->key.job);
    out.mutable_halt()->set_generation(halt->key.generation.value());
    out.mutable_halt()->set_reason(halt->reason);
  } else if (const auto* commit = std::get_if<job::CommitCheckpoint>(&command)) {
    v1::CommitCheckpoint* to = out.mutable_commit();
    to->set_job(commit->key.job);
    to->set_generation(commit->key.generation.value());
    to->set_step(commit->step.value());
    to->set_directory(commit->directory);
    to->set_keep(commit->keep);
    to->set_manifest(commit->manifest);
  }
  return out;
}

v1::Worker ToProto(const membership::Worker& worker) {
  const membership::Hello& hello = worker.hello;
  v1::Worker out;
  out.set_name(hello.worker);
  out.set_incarnation(hello.incarnation);
  out.set_state(static_cast<v1::WorkerState>(worker.state()));
  out.set_drained(worker.drained);
  out.set_leaving(worker.leaving);
  if (worker.hold) {
    out.set_job(worker.hold->job);
    out.set_rank(worker.hold->rank.value());
  }
  out.set_host(hello.host);
  out.set_cores(hello.cores);
  out.set_memory_bytes(hello.memory_bytes);
  out.set_matmul_flops_per_second(hello.matmul_flops_per_second);
  out.set_program_version(hello.program_version);
  out.set_protocol_version(hello.protocol_version);
  if (hello.device) *out.mutable_device() = takt::ToProto(*hello.device);
  out.set_has_nccl(hello.has_nccl);
  *out.mutable_attach_time() = store::ToProto(worker.attach_time);
  *out.mutable_last_seen() = store::ToProto(worker.last_seen);
  return out;
}

v1::StepSplit ToProto(const job::StepSplit& split) {
  const auto part = [&](explain::Part which) { return split.parts[static_cast<int>(which)]; };
  v1::StepSplit out;
  out.set_step(split.step.value());
  out.set_step_seconds(split.step_seconds);
  out.set_compute(part(explain::Part::kCompute));
  out.set_imbalance(part(explain::Part::kImbalance));
  out.set_schedule(part(explain::Part::kSchedule));
  out.set_communication(part(explain::Part::kCommunication));
  out.set_data(part(explain::Part::kData));
  out.set_sync(part(explain::Part::kSync));
  out.set_runtime(part(explain::Part::kRuntime));
  return out;
}

}  // namespace takt::coordinator_rpc
