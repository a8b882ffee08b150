// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/attachment_serde.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/program/program_serde.h"
#include "takt/v1/error.pb.h"

namespace takt::rpc {
namespace {

// takt.v1.Binding.secret.
constexpr std::size_t kSecretBytes = 32;

absl::StatusOr<mesh::Partition> ToPartition(const v1::Assignment& proto, int pp_size) {
  mesh::Partition partition;
  for (const v1::StageAssignment& stage : proto.stages()) {
    const int first = partition.empty() ? 0 : partition.back().last_layer.value();
    if (stage.stage() != static_cast<int>(partition.size()) || stage.first_layer() != first ||
        stage.last_layer() <= first || stage.pp_rank() < 0 || stage.pp_rank() >= pp_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage ", stage.stage(), " of the assignment: layers ", stage.first_layer(), "..",
          stage.last_layer(), " on pp rank ", stage.pp_rank(), " do not continue a partition over ",
          pp_size, " pp ranks at layer ", first));
    }
    if (!v1::RecomputeMode_IsValid(stage.recompute())) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage.stage(), " of the assignment recomputes in mode ",
                       static_cast<int>(stage.recompute()), ", which this worker does not know"));
    }
    partition.push_back({.id = StageId(stage.stage()),
                         .pp_rank = PpRank(stage.pp_rank()),
                         .first_layer = LayerId(stage.first_layer()),
                         .last_layer = LayerId(stage.last_layer())});
    if (stage.recompute() != v1::RECOMPUTE_MODE_UNSPECIFIED) {
      partition.back().recompute = static_cast<model::Recompute>(stage.recompute());
    }
  }
  return partition;
}

// What the parts say of each other.
absl::Status CheckAgreement(const session::Assignment& assignment) {
  const mesh::Mesh& mesh = assignment.mesh;
  const int num_stages = static_cast<int>(assignment.partition.size());
  const int num_microbatches = assignment.job.MicrobatchesPerStep(mesh.dp_size);
  const auto check = [&](const program::Program& program, std::string_view what) -> absl::Status {
    if (program.pp_rank == mesh.PpRankOf(assignment.rank) && program.pp_size == mesh.pp_size &&
        program.num_stages == num_stages && program.num_microbatches == num_microbatches) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", std::string(what), " (pp rank ", program.pp_rank.value(), " of ", program.pp_size,
        ", ", program.num_stages, " stages, ", program.num_microbatches,
        " microbatches) is not one for rank ", assignment.rank.value(), " of ", mesh.pp_size, " x ",
        mesh.dp_size, " with ", num_stages, " stages and ", num_microbatches, " microbatches"));
  };
  RETURN_IF_ERROR(check(assignment.program, "program"));
  if (assignment.job.validation.has_value() != assignment.validation_program.has_value()) {
    return absl::InvalidArgumentError("a validation set and its program come together");
  }
  if (!assignment.validation_program.has_value()) return absl::OkStatus();
  return check(*assignment.validation_program, "validation program");
}

// What all reports begin with.
template <class Proto, class Report>
Proto Begin(const session::SequencedReport& item, const Report& report) {
  Proto proto;
  proto.set_job(item.key.job);
  proto.set_generation(item.key.generation.value());
  proto.set_rank(report.rank.value());
  proto.set_sequence(item.sequence);
  proto.set_step(report.step.value());
  return proto;
}

v1::RankStepReport ToProto(const session::SequencedReport& item,
                           const session::StepReport& report) {
  auto proto = Begin<v1::RankStepReport>(item, report);
  proto.set_loss(report.loss);
  proto.set_grad_norm(report.grad_norm);
  proto.set_learning_rate(report.learning_rate);
  proto.set_tokens(report.tokens);
  proto.set_step_seconds(report.step_seconds);
  proto.set_busy_seconds(report.busy_seconds);
  if (report.validation_loss.has_value()) proto.set_validation_loss(*report.validation_loss);
  return proto;
}

v1::CheckpointReport ToProto(const session::SequencedReport& item,
                             const session::CheckpointReport& report) {
  auto proto = Begin<v1::CheckpointReport>(item, report);
  for (const checkpoint::FileEntry& entry : report.files) {
    v1::CheckpointFile& file = *proto.add_files();
    file.set_name(entry.name);
    file.set_bytes(entry.bytes);
    file.set_xxh3_128(entry.xxh3_128);
  }
  proto.set_snapshot_seconds(report.snapshot_seconds);
  proto.set_write_seconds(report.write_seconds);
  if (!report.error.ok()) proto.set_error(report.error.ToString());
  return proto;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

}  // namespace

absl::StatusOr<session::Assignment> ToAssignment(const v1::Assignment& proto) {
  session::Assignment assignment;
  assignment.key = {proto.job(), Generation(proto.generation())};
  assignment.rank = Rank(proto.rank());
  const v1::Binding& binding = proto.binding();
  assignment.mesh = {.pp_size = binding.pp_size(), .dp_size = binding.dp_size()};
  if (binding.pp_size() < 1 || binding.dp_size() < 1 || proto.rank() < 0 ||
      proto.rank() >= assignment.mesh.size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", proto.rank(),
                                                   " of the assignment is not in a mesh of ",
                                                   binding.pp_size(), " x ", binding.dp_size()));
  }
  assignment.threads = binding.threads();
  assignment.transport = static_cast<config::TransportKind>(binding.transport());
  assignment.device = static_cast<config::DeviceKind>(binding.device());
  if (binding.secret().size() != kSecretBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the assignment's secret has ", binding.secret().size(), " bytes, not ", kSecretBytes));
  }
  assignment.secret = binding.secret();
  if (!proto.resume().empty()) assignment.resume = proto.resume();
  assignment.resume_at_most = StepId(proto.resume_at_most());
  ASSIGN_OR_RETURN(assignment.job, config::ToJobSpec(proto.spec()));
  ASSIGN_OR_RETURN(assignment.partition, ToPartition(proto, binding.pp_size()));
  ASSIGN_OR_RETURN(assignment.program, program::FromProto(proto.program()));
  if (proto.has_validation_program()) {
    ASSIGN_OR_RETURN(assignment.validation_program, program::FromProto(proto.validation_program()));
  }
  RETURN_IF_ERROR(CheckAgreement(assignment));
  return assignment;
}

session::CommitRequest ToCommitRequest(const v1::CommitCheckpoint& proto) {
  return {.key = {proto.job(), Generation(proto.generation())},
          .step = StepId(proto.step()),
          .directory = proto.directory(),
          .keep = std::max(1, proto.keep()),
          .manifest = proto.manifest()};
}

v1::CheckpointCommitted ToProto(const session::CommitAnswer& answer) {
  v1::CheckpointCommitted proto;
  proto.set_job(answer.key.job);
  proto.set_generation(answer.key.generation.value());
  proto.set_step(answer.step.value());
  if (!answer.status.ok()) proto.set_error(answer.status.ToString());
  return proto;
}

v1::RankStatus ToProto(const session::RankStatus& status, Rank rank, const std::string& worker) {
  v1::RankStatus proto;
  proto.set_rank(rank.value());
  proto.set_worker(worker);
  proto.set_last_step(status.last_step.value());
  proto.set_instruction(status.instruction);
  proto.set_waiting_for(status.waiting_for);
  proto.set_instruction_step(status.instruction_step.value());
  proto.set_instruction_seconds(status.instruction_seconds);
  for (const session::DoneInstruction& done : status.recent) {
    v1::DoneInstruction& to = *proto.add_recent();
    to.set_instruction(done.instruction);
    to.set_step(done.step.value());
    to.set_seconds(done.seconds);
    to.set_ended_seconds_ago(done.ended_seconds_ago);
  }
  return proto;
}

v1::JobUpdate ToProto(const session::JobUpdate& update, const std::string& worker) {
  v1::JobUpdate proto;
  proto.set_job(update.key.job);
  proto.set_generation(update.key.generation.value());
  proto.set_rank(update.rank.value());
  proto.set_phase(static_cast<v1::JobUpdate::Phase>(update.phase));
  if (!update.error.ok()) {
    proto.set_invalid_input(absl::IsInvalidArgument(update.error));
    // An invalid input is read by its author; of any other error the code says more than half.
    proto.set_error(proto.invalid_input() ? std::string(update.error.message())
                                          : update.error.ToString());
    if (const auto detail = update.error.GetPayload(kErrorDetailUrl); detail.has_value()) {
      proto.mutable_detail()->ParseFromString(std::string(*detail));
    }
  }
  *proto.mutable_status() = ToProto(update.status, update.rank, worker);
  proto.set_resumed_step(update.resumed.step.value());
  for (const std::string& note : update.resumed.notes) proto.add_notes(note);
  proto.set_kernel_plan(update.resumed.kernel_plan);
  return proto;
}

v1::StreamBulkRequest ToProto(const session::BulkOutbox::Item& item, const std::string& worker) {
  v1::StreamBulkRequest request;
  if (const auto* sequenced = std::get_if<session::SequencedReport>(&item)) {
    if (const auto* step = std::get_if<session::StepReport>(&sequenced->report)) {
      *request.mutable_step() = ToProto(*sequenced, *step);
    } else {
      *request.mutable_checkpoint() =
          ToProto(*sequenced, std::get<session::CheckpointReport>(sequenced->report));
    }
    return request;
  }
  if (const auto* trace = std::get_if<session::TraceRecord>(&item)) {
    request.mutable_trace()->set_job(trace->key.job);
    request.mutable_trace()->set_generation(trace->key.generation.value());
    request.mutable_trace()->set_trace(trace->encoded);
    return request;
  }
  const auto& record = std::get<session::LogRecord>(item);
  request.set_job(record.job);
  v1::LogLine& line = *request.mutable_log();
  line.set_worker(worker);
  line.set_rank(record.rank.value());
  line.set_step(record.step.value());
  line.set_level(Name(record.level));
  line.set_text(record.text);
  line.set_unix_nanos(record.unix_nanos);
  return request;
}

}  // namespace takt::rpc
