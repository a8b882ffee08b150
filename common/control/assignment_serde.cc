// SPDX-License-Identifier: Apache-2.0
#include "common/control/assignment_serde.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/bucket_bytes.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/control/job_key_serde.h"
#include "common/control/shared_assignment.h"
#include "common/mesh/mesh_serde.h"
#include "common/program/program_serde.h"

namespace takt::control {
namespace {

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
    partition.push_back(FromProto(stage));
  }
  return partition;
}

v1::MemoryCopies FromCopies(const MemoryCopies& copies) {
  v1::MemoryCopies proto;
  proto.set_every_steps(copies.every_steps);
  proto.set_shift(copies.shift);
  proto.set_at_most(copies.at_most.value());
  proto.set_required(copies.required);
  return proto;
}

absl::StatusOr<MemoryCopies> ToCopies(const v1::MemoryCopies& proto, int num_ranks) {
  if (proto.every_steps() >= 0 && proto.shift() >= 0 && proto.shift() < num_ranks) {
    return MemoryCopies{.every_steps = proto.every_steps(),
                        .shift = proto.shift(),
                        .at_most = StepId(proto.at_most()),
                        .required = proto.required()};
  }
  return absl::InvalidArgumentError(absl::StrCat("copies in memory every ", proto.every_steps(),
                                                 " steps, sent ", proto.shift(), " of ", num_ranks,
                                                 " ranks further, are not possible"));
}

absl::Status CheckRank(const Assignment& assignment) {
  const int rank = assignment.rank.value();
  if (assignment.mesh.IsPossible() && rank >= 0 && rank < assignment.mesh.size())
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank, " of the assignment is not in a mesh of ", mesh::ToString(assignment.mesh)));
}

absl::Status CheckVocabulary(const Assignment& assignment) {
  const mesh::VocabularyEnds& ends = assignment.vocabulary_ends;
  const int vocab = assignment.job.model.vocab, pp_size = assignment.mesh.pp_size;
  if (ends.empty() || (vocab > 0 && mesh::IsSplitOf(ends, pp_size, vocab))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ends of the assignment's vocabulary (", absl::StrJoin(ends, ", "),
      ") do not share out the blocks of ", vocab, " words over ", pp_size, " pp ranks"));
}

absl::Status CheckBucket(const Assignment& assignment) {
  const std::int64_t bytes = assignment.bucket_bytes;
  if (bytes == 0 || IsBucketSize(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the assignment's buckets of ", bytes,
                                                 " bytes are no power of two from ",
                                                 kLeastBucketBytes, " to ", kMostBucketBytes));
}

// Checks that the programs are for this rank of this job.
absl::Status CheckAgreement(const Assignment& assignment) {
  const mesh::Mesh& mesh = assignment.mesh;
  const int num_stages = static_cast<int>(assignment.partition.size());
  const int num_microbatches = assignment.job.MicrobatchesPerStep(mesh.dp_size);
  const auto check = [&](const program::Program& program, std::string_view what) -> absl::Status {
    if (program.pp_rank == mesh.PpRankOf(assignment.rank) && program.pp_size == mesh.pp_size &&
        program.num_stages == num_stages && program.num_microbatches == num_microbatches) {
      const bool spreads = program::SpreadsVocabulary(program);
      if (spreads != assignment.vocabulary_ends.empty()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("the ", std::string(what), spreads ? " spreads" : " does not spread",
                       " the vocabulary, the assignment ", spreads ? "does not" : "does"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the ", std::string(what), " (pp rank ", program.pp_rank.value(), " of ",
                     program.pp_size, ", ", program.num_stages, " stages, ",
                     program.num_microbatches, " microbatches) is not one for rank ",
                     assignment.rank.value(), " of ", mesh::ToString(mesh), " with ", num_stages,
                     " stages and ", num_microbatches, " microbatches"));
  };
  RETURN_IF_ERROR(check(assignment.program, "program"));
  if (assignment.job.validation.has_value() != assignment.validation_program.has_value()) {
    return absl::InvalidArgumentError("a validation set and its program come together");
  }
  if (!assignment.validation_program.has_value()) return absl::OkStatus();
  return check(*assignment.validation_program, "validation program");
}

// Reads what all ranks share, and the rank.
absl::StatusOr<Assignment> ReadShared(const v1::Assignment& proto) {
  const v1::Binding& binding = proto.binding();
  Assignment assignment{
      .key = KeyOf(proto),
      .rank = Rank(proto.rank()),
      .mesh = mesh::MeshOf(binding),
      .transport = static_cast<config::TransportKind>(binding.transport()),
      .device = static_cast<config::DeviceKind>(binding.device()),
      .predicted_step_seconds = proto.predicted_step_seconds(),
      .predicted_bubble_fraction = proto.predicted_bubble_fraction(),
      .resume_at_most = StepId(proto.resume_at_most()),
      .job_id = proto.job_id(),
      .other_jobs = {proto.other_jobs().begin(), proto.other_jobs().end()},
      .saved = StepId(proto.saved_step()),
      .owner = proto.owner(),
      .epoch = proto.epoch(),
      .vocabulary_ends = {proto.vocabulary_ends().begin(), proto.vocabulary_ends().end()}};
  RETURN_IF_ERROR(CheckRank(assignment));
  if (!proto.resume().empty()) assignment.resume = proto.resume();
  for (const v1::BoundRank& bound : binding.ranks()) assignment.ranks.push_back(FromProto(bound));
  assignment.sparse_meeting = binding.sparse_meeting();
  assignment.plain_sockets = binding.plain_sockets();
  assignment.sharing_chains = binding.sharing_chains();
  assignment.bucket_bytes = proto.bucket_bytes();
  RETURN_IF_ERROR(CheckBucket(assignment));
  ASSIGN_OR_RETURN(assignment.job, config::ToJobSpec(proto.spec()));
  ASSIGN_OR_RETURN(assignment.partition, ToPartition(proto, binding.pp_size()));
  ASSIGN_OR_RETURN(assignment.copies, ToCopies(proto.copies(), assignment.mesh.size()));
  return assignment;
}

// Writes what ReadShared reads.
v1::Assignment WriteShared(const Assignment& assignment) {
  v1::Assignment proto;
  SetKey(assignment.key, proto);
  proto.set_rank(assignment.rank.value());
  *proto.mutable_spec() = config::ToProto(assignment.job);
  for (const mesh::Stage& stage : assignment.partition) *proto.add_stages() = ToProto(stage);
  v1::Binding& binding = *proto.mutable_binding();
  for (const BoundRank& bound : assignment.ranks) *binding.add_ranks() = ToProto(bound);
  mesh::SetMesh(assignment.mesh, binding);
  binding.set_transport(static_cast<v1::TransportKind>(assignment.transport));
  binding.set_device(static_cast<v1::DeviceKind>(assignment.device));
  binding.set_sparse_meeting(assignment.sparse_meeting);
  binding.set_plain_sockets(assignment.plain_sockets);
  binding.set_sharing_chains(assignment.sharing_chains);
  proto.set_predicted_step_seconds(assignment.predicted_step_seconds);
  proto.set_predicted_bubble_fraction(assignment.predicted_bubble_fraction);
  proto.set_resume(assignment.resume);
  proto.set_resume_at_most(assignment.resume_at_most.value());
  proto.set_job_id(assignment.job_id);
  proto.mutable_other_jobs()->Add(assignment.other_jobs.begin(), assignment.other_jobs.end());
  proto.set_saved_step(assignment.saved.value());
  proto.set_owner(assignment.owner);
  proto.set_epoch(assignment.epoch);
  proto.set_bucket_bytes(assignment.bucket_bytes);
  proto.mutable_vocabulary_ends()->Add(assignment.vocabulary_ends.begin(),
                                       assignment.vocabulary_ends.end());
  // All ranks write the same text, also those of workers that know no copies.
  // A rank may resume from copies and keep none.
  const MemoryCopies& copies = assignment.copies;
  if (copies.every_steps > 0 || copies.at_most > StepId(0))
    *proto.mutable_copies() = FromCopies(copies);
  return proto;
}

}  // namespace

v1::BoundRank ToProto(const BoundRank& bound) {
  v1::BoundRank proto;
  proto.set_rank(bound.rank.value());
  proto.set_worker(bound.worker);
  proto.set_incarnation(bound.incarnation);
  proto.set_data_address(bound.data_address);
  return proto;
}

BoundRank FromProto(const v1::BoundRank& proto) {
  return {.rank = Rank(proto.rank()),
          .worker = proto.worker(),
          .incarnation = proto.incarnation(),
          .data_address = proto.data_address()};
}

v1::StageAssignment ToProto(const mesh::Stage& stage) {
  v1::StageAssignment proto;
  proto.set_stage(stage.id.value());
  proto.set_pp_rank(stage.pp_rank.value());
  proto.set_first_layer(stage.first_layer.value());
  proto.set_last_layer(stage.last_layer.value());
  proto.set_recompute(static_cast<v1::RecomputeMode>(stage.recompute));
  return proto;
}

mesh::Stage FromProto(const v1::StageAssignment& proto) {
  mesh::Stage stage{.id = StageId(proto.stage()),
                    .pp_rank = PpRank(proto.pp_rank()),
                    .first_layer = LayerId(proto.first_layer()),
                    .last_layer = LayerId(proto.last_layer())};
  // A job of an older program, which did not write this field, recomputes nothing.
  if (proto.recompute() != v1::RECOMPUTE_MODE_UNSPECIFIED) {
    stage.recompute = static_cast<model::Recompute>(proto.recompute());
  }
  return stage;
}

v1::Assignment ToProto(const Assignment& assignment) {
  v1::Assignment proto = WriteShared(assignment);
  *proto.mutable_program() = program::ToProto(assignment.program);
  if (assignment.validation_program.has_value()) {
    *proto.mutable_validation_program() = program::ToProto(*assignment.validation_program);
  }
  proto.mutable_binding()->set_threads(assignment.threads);
  proto.mutable_binding()->set_secret(assignment.secret);
  return proto;
}

absl::StatusOr<Assignment> FromProto(const v1::Assignment& proto) {
  ASSIGN_OR_RETURN(Assignment assignment, ReadShared(proto));
  assignment.threads = proto.binding().threads();
  assignment.secret = proto.binding().secret();
  if (assignment.secret.size() != kSecretBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the assignment's secret has ", assignment.secret.size(), " bytes, not ", kSecretBytes));
  }
  ASSIGN_OR_RETURN(assignment.program, program::FromProto(proto.program()));
  if (proto.has_validation_program()) {
    ASSIGN_OR_RETURN(assignment.validation_program, program::FromProto(proto.validation_program()));
  }
  RETURN_IF_ERROR(CheckVocabulary(assignment));
  RETURN_IF_ERROR(CheckAgreement(assignment));
  return assignment;
}

std::string SharedText(const Assignment& assignment) {
  v1::Assignment proto = WriteShared(assignment);
  proto.clear_rank();
  return proto.SerializeAsString();
}

absl::StatusOr<Assignment> ParseShared(const std::string& text) {
  v1::Assignment proto;
  if (!proto.ParseFromString(text))
    return absl::InvalidArgumentError("the text is not a takt.v1.Assignment");
  ASSIGN_OR_RETURN(Assignment assignment, ReadShared(proto));
  RETURN_IF_ERROR(CheckVocabulary(assignment));
  if (assignment.sparse_meeting && assignment.ranks.empty()) return assignment;
  const int num_ranks = static_cast<int>(assignment.ranks.size());
  bool in_order = num_ranks == assignment.mesh.size();
  for (int rank = 0; rank < num_ranks; ++rank)
    in_order = in_order && assignment.ranks[rank].rank == Rank(rank);
  if (in_order) return assignment;
  return absl::InvalidArgumentError(absl::StrCat("the assignment binds ", num_ranks,
                                                 " ranks, not those of a mesh of ",
                                                 mesh::ToString(assignment.mesh)));
}

}  // namespace takt::control
