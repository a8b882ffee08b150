// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/record_serde.h"

#include <algorithm>

#include "common/base/field_error_serde.h"
#include "common/base/memory_serde.h"
#include "common/base/time_serde.h"
#include "common/control/assignment_serde.h"
#include "common/control/rank_status_serde.h"
#include "common/control/reports_serde.h"
#include "common/mesh/mesh_serde.h"

namespace takt::store {
namespace {

v1::OpenCheckpoint ToProto(const OpenCheckpoint& open) {
  v1::OpenCheckpoint out;
  out.set_step(open.step.value());
  for (const Rank rank : open.written) out.add_written(rank.value());
  for (const checkpoint::FileEntry& file : open.files) *out.add_files() = control::ToProto(file);
  out.set_snapshot_seconds(open.snapshot_seconds);
  out.set_write_seconds(open.write_seconds);
  out.set_error(open.error);
  out.set_committer(open.committer);
  out.set_committer_incarnation(open.committer_incarnation);
  return out;
}

OpenCheckpoint FromProto(const v1::OpenCheckpoint& open) {
  OpenCheckpoint out{.step = StepId(open.step()),
                     .snapshot_seconds = open.snapshot_seconds(),
                     .write_seconds = open.write_seconds(),
                     .error = open.error(),
                     .committer = open.committer(),
                     .committer_incarnation = open.committer_incarnation()};
  for (const std::int32_t rank : open.written()) out.written.emplace_back(rank);
  for (const v1::CheckpointFile& file : open.files()) out.files.push_back(control::FromProto(file));
  return out;
}

v1::JobFault ToProto(const JobFault& fault) {
  v1::JobFault out;
  *out.mutable_time() = takt::ToProto(fault.time);
  out.set_tried_seconds(absl::ToDoubleSeconds(fault.tried));
  out.set_worker(fault.worker);
  out.set_error(fault.error);
  out.set_step(fault.step.value());
  out.set_committed_step(fault.committed.value());
  return out;
}

JobFault FromProto(const v1::JobFault& fault) {
  return {.time = takt::FromProto(fault.time()),
          .tried = absl::Seconds(fault.tried_seconds()),
          .worker = fault.worker(),
          .error = fault.error(),
          .step = StepId(fault.step()),
          .committed = StepId(fault.committed_step())};
}

}  // namespace

double EtaSeconds(const JobRecord& job) {
  if (HasEnded(job.state)) return 0;
  const std::int64_t done =
      std::max(job.resumed_step, job.last_step ? job.last_step->step : StepId(0)).value();
  const double step_seconds =
      job.last_step ? job.last_step->step_seconds : job.plan.predicted_step_seconds;
  return static_cast<double>(job.steps - done) * step_seconds;
}

const char* Name(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kPlanning:
      return "PLANNING";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kPaused:
      return "PAUSED";
  }
  return "UNKNOWN";
}

v1::StepReport ToProto(const StepRecord& step) {
  v1::StepReport out;
  out.set_step(step.step.value());
  out.set_loss(step.loss);
  out.set_grad_norm(step.grad_norm);
  out.set_learning_rate(step.learning_rate);
  out.set_tokens(step.tokens);
  if (step.step_seconds > 0) {
    out.set_tokens_per_second(static_cast<double>(step.tokens) / step.step_seconds);
  }
  out.set_step_seconds(step.step_seconds);
  out.set_bubble_fraction(step.bubble_fraction);
  out.set_schedule(step.schedule);
  *out.mutable_time() = takt::ToProto(step.time);
  out.set_generation(step.generation.value());
  out.mutable_bubble_by_pp_rank()->Add(step.bubble_by_pp_rank.begin(),
                                       step.bubble_by_pp_rank.end());
  if (step.validation_loss) out.set_validation_loss(*step.validation_loss);
  if (step.validation_bytes_per_token)
    out.set_validation_bytes_per_token(*step.validation_bytes_per_token);
  return out;
}

StepRecord FromProto(const v1::StepReport& report, const std::string& job_id) {
  StepRecord out{
      .job_id = job_id,
      .generation = Generation(report.generation()),
      .step = StepId(report.step()),
      .loss = report.loss(),
      .grad_norm = report.grad_norm(),
      .learning_rate = report.learning_rate(),
      .tokens = report.tokens(),
      .step_seconds = report.step_seconds(),
      .bubble_by_pp_rank = {report.bubble_by_pp_rank().begin(), report.bubble_by_pp_rank().end()},
      .bubble_fraction = report.bubble_fraction(),
      .schedule = report.schedule(),
      .time = takt::FromProto(report.time())};
  if (report.has_validation_loss()) out.validation_loss = report.validation_loss();
  if (report.has_validation_bytes_per_token())
    out.validation_bytes_per_token = report.validation_bytes_per_token();
  return out;
}

void SetPlan(const PlanSummary& plan, v1::Job& job) {
  job.set_schedule(plan.schedule);
  job.set_device(static_cast<v1::DeviceKind>(plan.device));
  for (const mesh::Stage& stage : plan.partition) *job.add_stages() = control::ToProto(stage);
  job.mutable_vocabulary_ends()->Assign(plan.vocabulary_ends.begin(), plan.vocabulary_ends.end());
  job.set_shares_optimizer(plan.shares_optimizer);
  for (const MemoryBytes& of_rank : plan.memory) *job.add_memory() = takt::ToProto(of_rank);
  job.set_predicted_step_seconds(plan.predicted_step_seconds);
  job.set_predicted_bubble_fraction(plan.predicted_bubble_fraction);
}

v1::Job ToProto(const JobRecord& job) {
  v1::Job out;
  out.set_name(job.name);
  out.set_id(job.id);
  out.mutable_spec()->ParseFromString(job.spec);
  out.set_owner(job.owner);
  out.set_state(static_cast<v1::JobState>(job.state));
  out.set_reason(job.reason);
  for (const Transition& transition : job.transitions) {
    v1::JobTransition* to = out.add_transitions();
    to->set_state(static_cast<v1::JobState>(transition.state));
    *to->mutable_time() = takt::ToProto(transition.time);
    to->set_reason(transition.reason);
  }
  out.set_forgotten_transitions(job.forgotten_transitions);
  *out.mutable_create_time() = takt::ToProto(job.create_time);
  if (job.end_time) *out.mutable_end_time() = takt::ToProto(*job.end_time);
  out.set_generation(job.generation.value());
  if (job.last_step) *out.mutable_last_step() = ToProto(*job.last_step);
  out.set_steps(job.steps);
  SetPlan(job.plan, out);
  for (const control::BoundRank& bound : job.ranks) *out.add_ranks() = control::ToProto(bound);
  out.set_eta_seconds(EtaSeconds(job));
  for (const control::RankStatus& status : job.fault) *out.add_fault() = control::ToProto(status);
  out.set_invalid_input(job.invalid_input);
  *out.mutable_violations() = takt::ToProto(job.violations);
  out.mutable_warnings()->Add(job.plan.warnings.begin(), job.plan.warnings.end());
  out.mutable_warnings()->Add(job.notices.begin(), job.notices.end());
  if (job.checkpoint) {
    out.mutable_checkpoint()->set_step(job.checkpoint->step.value());
    *out.mutable_checkpoint()->mutable_time() = takt::ToProto(job.checkpoint->time);
  }
  out.set_resumed_step(job.resumed_step.value());
  out.set_memory_step(job.memory_step.value());
  out.set_copy_every_steps(job.plan.copy_every_steps);
  out.set_kernel_plan(job.kernel_plan);
  out.set_replan_gain_ratio(job.replan_gain);
  return out;
}

v1::JobRecord ToRecordProto(const JobRecord& job) {
  v1::JobRecord out;
  *out.mutable_job() = ToProto(job);
  out.mutable_job()->clear_last_step();
  out.mutable_job()->clear_eta_seconds();
  out.mutable_job()->clear_replan_gain_ratio();
  out.mutable_job()->clear_warnings();
  out.mutable_job()->mutable_warnings()->Add(job.plan.warnings.begin(), job.plan.warnings.end());
  mesh::SetMesh(job.plan.mesh, out);
  for (const auto& [rank, why] : job.lost) {
    v1::LostRank& lost = *out.add_lost_ranks();
    lost.set_rank(rank.value());
    lost.set_reason(why);
  }
  if (job.stop) {
    out.mutable_stop()->set_state(static_cast<v1::JobState>(job.stop->state));
    out.mutable_stop()->set_reason(job.stop->reason);
    out.mutable_stop()->set_invalid_input(job.stop->invalid_input);
    *out.mutable_stop()->mutable_violations() = takt::ToProto(job.stop->violations);
  }
  if (job.halt) {
    out.mutable_halt()->set_next(static_cast<v1::JobState>(job.halt->next));
    out.mutable_halt()->set_reason(job.halt->reason);
    out.mutable_halt()->set_in_memory(job.halt->in_memory);
  }
  for (const OpenCheckpoint& open : job.saving.open) *out.add_open_checkpoints() = ToProto(open);
  out.set_settled_checkpoint(job.saving.settled.value());
  for (const JobFault& fault : job.faults) *out.add_faults() = ToProto(fault);
  out.mutable_notices()->Add(job.notices.begin(), job.notices.end());
  out.set_planning_ends(job.planning_ends);
  out.set_next_generation(job.next_generation.value());
  out.set_epoch_base(job.epoch_base);
  if (job.adoption) {
    out.mutable_adoption()->set_cluster_id(job.adoption->cluster_id);
    out.mutable_adoption()->set_acknowledged_step(job.adoption->acknowledged.value());
  }
  if (job.copies) {
    out.mutable_copies()->mutable_workers()->Assign(job.copies->workers.begin(),
                                                    job.copies->workers.end());
    *out.mutable_copies()->mutable_time() = takt::ToProto(job.copies->since);
  }
  out.set_model_flops_per_step(job.plan.model_flops);
  out.set_matmul_flops_per_second(job.plan.matmul_flops_per_second);
  out.set_checkpoint_every_steps(job.plan.checkpoint_every_steps);
  return out;
}

namespace {

PlanSummary PlanOf(const v1::JobRecord& record) {
  const v1::Job& job = record.job();
  PlanSummary plan{.device = static_cast<config::DeviceKind>(job.device()),
                   .schedule = job.schedule(),
                   .mesh = mesh::MeshOf(record),
                   .predicted_step_seconds = job.predicted_step_seconds(),
                   .predicted_bubble_fraction = job.predicted_bubble_fraction(),
                   .warnings = {job.warnings().begin(), job.warnings().end()},
                   .model_flops = record.model_flops_per_step(),
                   .matmul_flops_per_second = record.matmul_flops_per_second(),
                   .checkpoint_every_steps = record.checkpoint_every_steps(),
                   .copy_every_steps = job.copy_every_steps()};
  for (const v1::StageAssignment& stage : job.stages())
    plan.partition.push_back(control::FromProto(stage));
  plan.vocabulary_ends.assign(job.vocabulary_ends().begin(), job.vocabulary_ends().end());
  plan.shares_optimizer = job.shares_optimizer();
  for (const v1::MemoryBytes& of_rank : job.memory())
    plan.memory.push_back(takt::FromProto(of_rank));
  return plan;
}

}  // namespace

JobRecord FromProto(const v1::JobRecord& record) {
  const v1::Job& job = record.job();
  JobRecord out;
  out.id = job.id();
  out.name = job.name();
  out.spec = job.spec().SerializeAsString();
  out.owner = job.owner();
  out.state = static_cast<JobState>(job.state());
  out.reason = job.reason();
  for (const v1::JobTransition& transition : job.transitions()) {
    out.transitions.push_back({static_cast<JobState>(transition.state()),
                               takt::FromProto(transition.time()), transition.reason()});
  }
  out.forgotten_transitions = job.forgotten_transitions();
  out.create_time = takt::FromProto(job.create_time());
  if (job.has_end_time()) out.end_time = takt::FromProto(job.end_time());
  out.generation = Generation(job.generation());
  out.steps = job.steps();
  out.plan = PlanOf(record);
  for (const v1::BoundRank& bound : job.ranks()) out.ranks.push_back(control::FromProto(bound));
  for (const v1::LostRank& lost : record.lost_ranks()) out.lost[Rank(lost.rank())] = lost.reason();
  for (const v1::RankStatus& status : job.fault()) out.fault.push_back(control::FromProto(status));
  out.invalid_input = job.invalid_input();
  out.violations = takt::FromProto(job.violations());
  if (record.has_stop()) {
    out.stop = JobStop{.state = static_cast<JobState>(record.stop().state()),
                       .reason = record.stop().reason(),
                       .invalid_input = record.stop().invalid_input(),
                       .violations = takt::FromProto(record.stop().violations())};
  }
  if (record.has_halt()) {
    out.halt = JobHalt{.next = static_cast<JobState>(record.halt().next()),
                       .reason = record.halt().reason(),
                       .in_memory = record.halt().in_memory()};
  }
  if (job.has_checkpoint()) {
    out.checkpoint = JobCheckpoint{.step = StepId(job.checkpoint().step()),
                                   .time = takt::FromProto(job.checkpoint().time())};
  }
  out.resumed_step = StepId(job.resumed_step());
  out.memory_step = StepId(job.memory_step());
  out.kernel_plan = job.kernel_plan();
  for (const v1::OpenCheckpoint& open : record.open_checkpoints())
    out.saving.open.push_back(FromProto(open));
  out.saving.settled = StepId(record.settled_checkpoint());
  for (const v1::JobFault& fault : record.faults()) out.faults.push_back(FromProto(fault));
  out.notices.assign(record.notices().begin(), record.notices().end());
  out.planning_ends = record.planning_ends();
  out.next_generation = Generation(record.next_generation());
  out.epoch_base = record.epoch_base();
  if (record.has_adoption()) {
    out.adoption = JobAdoption{.cluster_id = record.adoption().cluster_id(),
                               .acknowledged = StepId(record.adoption().acknowledged_step())};
  }
  if (record.has_copies()) {
    const auto& workers = record.copies().workers();
    out.copies = KeptCopies{.workers = {workers.begin(), workers.end()},
                            .since = takt::FromProto(record.copies().time())};
  }
  return out;
}

v1::WorkerRecord ToProto(const WorkerRecord& worker) {
  v1::WorkerRecord out;
  for (const WorkerFault& fault : worker.faults) {
    v1::WorkerFault* const to = out.add_faults();
    *to->mutable_time() = takt::ToProto(fault.time);
    to->set_job(fault.job);
    to->set_what(fault.what);
  }
  if (worker.quarantined_until != absl::InfinitePast())
    *out.mutable_quarantined_until() = takt::ToProto(worker.quarantined_until);
  out.set_quarantines(worker.quarantines);
  return out;
}

WorkerRecord FromProto(const v1::WorkerRecord& worker) {
  WorkerRecord out{.quarantines = worker.quarantines()};
  for (const v1::WorkerFault& fault : worker.faults())
    out.faults.push_back({takt::FromProto(fault.time()), fault.job(), fault.what()});
  if (worker.has_quarantined_until())
    out.quarantined_until = takt::FromProto(worker.quarantined_until());
  return out;
}

v1::LogLine ToProto(const LogRecord& log) {
  v1::LogLine out;
  out.set_worker(log.worker);
  out.set_rank(log.rank.value());
  out.set_step(log.step.value());
  out.set_level(log.level);
  out.set_text(log.text);
  out.set_unix_nanos(log.unix_nanos);
  return out;
}

LogRecord FromProto(const v1::LogLine& line, const std::string& job_id) {
  return {.job_id = job_id,
          .worker = line.worker(),
          .rank = Rank(line.rank()),
          .step = StepId(line.step()),
          .level = line.level(),
          .text = line.text(),
          .unix_nanos = line.unix_nanos()};
}

}  // namespace takt::store
