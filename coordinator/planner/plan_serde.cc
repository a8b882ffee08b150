// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/plan_serde.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/memory_serde.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/control/assignment_serde.h"
#include "common/mesh/mesh_serde.h"
#include "common/profile/profile_serde.h"
#include "common/program/program_serde.h"
#include "common/schedule/text.h"
#include "takt/v1/planning.pb.h"

namespace takt::planner {
namespace {

using Doubles = google::protobuf::RepeatedField<double>;
using Programs = google::protobuf::RepeatedPtrField<v1::Program>;

void Write(const std::vector<double>& from, Doubles& to) { to.Assign(from.begin(), from.end()); }
std::vector<double> Read(const Doubles& from) { return {from.begin(), from.end()}; }

v1::PlanCosts::Link ToProto(PpRank from, PpRank to, const cost::LinkCost& link) {
  v1::PlanCosts::Link out;
  out.set_from(from.value());
  out.set_to(to.value());
  out.set_latency(link.latency);
  out.set_seconds_per_byte(link.seconds_per_byte);
  return out;
}

cost::LinkCost FromProto(const v1::PlanCosts::Link& link) {
  return {.latency = link.latency(), .seconds_per_byte = link.seconds_per_byte()};
}

using ProtoGroups = google::protobuf::RepeatedPtrField<v1::PlanCosts::Group>;

void Write(const std::vector<cost::GroupCost>& groups, ProtoGroups& out) {
  for (const cost::GroupCost& group : groups) {
    v1::PlanCosts::Group& added = *out.Add();
    added.set_size(group.size);
    added.set_latency(group.link.latency);
    added.set_seconds_per_byte(group.link.seconds_per_byte);
  }
}

std::vector<cost::GroupCost> Read(const ProtoGroups& groups) {
  std::vector<cost::GroupCost> out;
  for (const v1::PlanCosts::Group& group : groups) {
    out.push_back(
        {.size = group.size(),
         .link = {.latency = group.latency(), .seconds_per_byte = group.seconds_per_byte()}});
  }
  return out;
}

v1::PlanCosts ToProto(const cost::Costs& costs) {
  v1::PlanCosts out;
  Write(costs.forward, *out.mutable_forward());
  Write(costs.input_grad, *out.mutable_input_grad());
  Write(costs.weight_grad, *out.mutable_weight_grad());
  Write(costs.backward, *out.mutable_backward());
  out.set_pair_ratio(costs.pair_ratio);
  Write(costs.reduction, *out.mutable_reduction());
  *out.mutable_link() = ToProto(PpRank(0), PpRank(0), costs.link);
  for (const auto& [pair, link] : costs.links)
    *out.add_links() = ToProto(pair.first, pair.second, link);
  out.set_tied_reduction(costs.tied_reduction);
  Write(costs.optimizer, *out.mutable_optimizer());
  Write(costs.vocabulary_forward, *out.mutable_vocabulary_forward());
  Write(costs.vocabulary_backward, *out.mutable_vocabulary_backward());
  Write(costs.embedding_update, *out.mutable_embedding_update());
  Write(costs.head_update, *out.mutable_head_update());
  Write(costs.tensor, *out.mutable_tensor());
  out.set_halves_run_in_turn(!costs.halves_run_beside);
  out.set_terms(costs.terms);
  out.set_chained_sums(costs.chained_sums);
  Write(costs.context, *out.mutable_context());
  return out;
}

cost::Costs FromProto(const v1::PlanCosts& costs) {
  cost::Costs out;
  out.forward = Read(costs.forward());
  out.input_grad = Read(costs.input_grad());
  out.weight_grad = Read(costs.weight_grad());
  out.backward = Read(costs.backward());
  if (costs.pair_ratio() > 0) out.pair_ratio = costs.pair_ratio();
  out.reduction = Read(costs.reduction());
  out.link = FromProto(costs.link());
  for (const v1::PlanCosts::Link& link : costs.links())
    out.links[{PpRank(link.from()), PpRank(link.to())}] = FromProto(link);
  out.tied_reduction = costs.tied_reduction();
  out.optimizer = Read(costs.optimizer());
  out.vocabulary_forward = Read(costs.vocabulary_forward());
  out.vocabulary_backward = Read(costs.vocabulary_backward());
  if (costs.embedding_update_size() > 0) out.embedding_update = Read(costs.embedding_update());
  if (costs.head_update_size() > 0) out.head_update = Read(costs.head_update());
  out.tensor = Read(costs.tensor());
  out.halves_run_beside = !costs.halves_run_in_turn();
  out.terms = costs.terms();
  out.chained_sums = costs.chained_sums();
  out.context = Read(costs.context());
  return out;
}

v1::PlanHost ToProto(const plan::Host& host) {
  const auto& [machine, threads, workers, free] = host;
  v1::PlanHost out;
  out.set_machine(machine);
  out.set_threads(threads);
  out.set_workers(workers);
  out.set_free(free);
  return out;
}

plan::Host FromProto(const v1::PlanHost& host) {
  return {.machine = host.machine(),
          .threads = host.threads(),
          .workers = host.workers(),
          .free = host.free()};
}

v1::PlannedSchedule ToProto(const schedule::Schedule& schedule) {
  v1::PlannedSchedule out;
  out.set_name(schedule.name);
  out.set_num_stages(schedule.num_stages);
  out.set_num_microbatches(schedule.num_microbatches);
  out.set_placement(static_cast<int>(schedule.placement));
  out.set_updates(static_cast<int>(schedule.updates));
  out.set_csv(schedule::FormatCsv(schedule));
  return out;
}

absl::StatusOr<schedule::Schedule> FromProto(const v1::PlannedSchedule& schedule) {
  ASSIGN_OR_RETURN(schedule::Schedule out, schedule::ParseCsv(schedule.csv(), schedule.name()));
  out.num_stages = schedule.num_stages();
  out.num_microbatches = schedule.num_microbatches();
  out.placement = static_cast<schedule::Placement>(schedule.placement());
  out.updates = static_cast<schedule::Updates>(schedule.updates());
  return out;
}

void Write(const std::vector<program::Program>& from, Programs& to) {
  for (const program::Program& program : from) *to.Add() = program::ToProto(program);
}

absl::StatusOr<std::vector<program::Program>> Read(const Programs& from) {
  std::vector<program::Program> programs;
  for (const v1::Program& program : from) {
    ASSIGN_OR_RETURN(programs.emplace_back(), program::FromProto(program));
  }
  return programs;
}

v1::Plan ToProto(const plan::Plan& plan) {
  // This names every field, so that a new one that is not written here does not compile.
  const auto& [model, mesh, microbatch, partition, vocabulary_ends, schedule, programs,
               validation_programs, memory, costs, bucket_bytes, step_seconds, bubble_fraction,
               warnings] = plan;
  v1::Plan out;
  mesh::SetMesh(mesh, out);
  out.set_microbatch(microbatch);
  for (const mesh::Stage& stage : partition) *out.add_stages() = control::ToProto(stage);
  out.mutable_vocabulary_ends()->Assign(vocabulary_ends.begin(), vocabulary_ends.end());
  *out.mutable_schedule() = ToProto(schedule);
  Write(programs, *out.mutable_programs());
  Write(validation_programs, *out.mutable_validation_programs());
  for (const MemoryBytes& of_rank : memory) *out.add_memory() = takt::ToProto(of_rank);
  *out.mutable_costs() = ToProto(costs);
  out.set_bucket_bytes(bucket_bytes);
  out.set_predicted_step_seconds(step_seconds);
  out.set_predicted_bubble_fraction(bubble_fraction);
  out.mutable_warnings()->Add(warnings.begin(), warnings.end());
  return out;
}

absl::StatusOr<plan::Plan> FromProto(const v1::Plan& plan, const PlanRequest& request) {
  plan::Plan out;
  out.mesh = mesh::MeshOf(plan);
  if (plan.microbatch() < 1) return absl::DataLossError("the planner's plan has no microbatches");
  config::JobSpec job = request.job;
  job.parallelism.tensor = out.mesh.tp_size;  // which the job may leave open
  ASSIGN_OR_RETURN(out.model, config::BuildModelOf(job, plan.microbatch(), request.options.device));
  out.microbatch = plan.microbatch();
  for (const v1::StageAssignment& stage : plan.stages())
    out.partition.push_back(control::FromProto(stage));
  out.vocabulary_ends.assign(plan.vocabulary_ends().begin(), plan.vocabulary_ends().end());
  ASSIGN_OR_RETURN(out.schedule, FromProto(plan.schedule()));
  out.schedule.spreads_vocabulary = !out.vocabulary_ends.empty();
  ASSIGN_OR_RETURN(out.programs, Read(plan.programs()));
  ASSIGN_OR_RETURN(out.validation_programs, Read(plan.validation_programs()));
  for (const v1::MemoryBytes& of_rank : plan.memory())
    out.memory.push_back(takt::FromProto(of_rank));
  out.costs = FromProto(plan.costs());
  out.bucket_bytes = plan.bucket_bytes();
  out.predicted_step_seconds = plan.predicted_step_seconds();
  out.predicted_bubble_fraction = plan.predicted_bubble_fraction();
  out.warnings.assign(plan.warnings().begin(), plan.warnings().end());
  return out;
}

}  // namespace

std::string FormatRequest(const config::JobSpec& job, const plan::PlanOptions& options) {
  const auto& [max_workers, device, measured, host, flops_per_second, latency, seconds_per_byte,
               use_measured_links, oldest_protocol, memory_bytes, clipped_share, expert_imbalance] =
      options;
  v1::PlanRequest out;
  *out.mutable_job() = config::ToProto(job);
  out.mutable_warnings()->Add(job.warnings.begin(), job.warnings.end());
  out.set_max_workers(max_workers);
  out.set_device(static_cast<v1::DeviceKind>(device));
  out.set_matmul_flops_per_second(flops_per_second);
  out.set_link_latency_seconds(latency);
  out.set_link_seconds_per_byte(seconds_per_byte);
  out.set_use_measured_links(use_measured_links);
  out.set_oldest_protocol(oldest_protocol);
  out.set_worker_memory_bytes(memory_bytes);
  out.set_expert_imbalance(expert_imbalance);
  if (clipped_share.has_value()) out.set_clipped_share(*clipped_share);
  if (measured != nullptr) *out.mutable_profile() = profile::ToProto(*measured);
  *out.mutable_host() = ToProto(host);
  return out.SerializeAsString();
}

absl::StatusOr<PlanRequest> ParseRequest(const std::string& bytes) {
  v1::PlanRequest request;
  if (!request.ParseFromString(bytes) || !request.has_job())
    return absl::DataLossError("what came is no request to plan");
  PlanRequest out{.options = {
                      .max_workers = request.max_workers(),
                      .device = static_cast<config::DeviceKind>(request.device()),
                      .host = FromProto(request.host()),
                      .matmul_flops_per_second = request.matmul_flops_per_second(),
                      .link_latency_seconds = request.link_latency_seconds(),
                      .link_seconds_per_byte = request.link_seconds_per_byte(),
                      .use_measured_links = request.use_measured_links(),
                      .oldest_protocol = request.oldest_protocol(),
                      .worker_memory_bytes = request.worker_memory_bytes(),
                      .expert_imbalance = request.expert_imbalance(),
                  }};
  if (request.has_clipped_share()) out.options.clipped_share = request.clipped_share();
  ASSIGN_OR_RETURN(out.job, config::ToJobSpec(request.job()));
  out.job.warnings.assign(request.warnings().begin(), request.warnings().end());
  if (request.has_profile()) {
    absl::StatusOr<profile::Profile> measured = profile::FromProto(request.profile());
    if (!measured.ok()) return absl::DataLossError(measured.status().message());
    out.options.profile = std::make_shared<const profile::Profile>(*std::move(measured));
  }
  return out;
}

std::string FormatAnswer(const absl::StatusOr<plan::Plan>& answer) {
  v1::PlanAnswer out;
  if (answer.ok()) {
    *out.mutable_plan() = ToProto(*answer);
  } else {
    out.set_error_code(static_cast<int>(answer.status().code()));
    out.set_error_message(std::string(answer.status().message()));
    if (const auto detail = answer.status().GetPayload(kErrorDetailUrl))
      out.set_error_detail(std::string(*detail));
  }
  return out.SerializeAsString();
}

absl::StatusOr<plan::Plan> ParseAnswer(const std::string& bytes, const PlanRequest& request) {
  v1::PlanAnswer answer;
  if (!answer.ParseFromString(bytes) || answer.has_plan() == (answer.error_code() != 0))
    return absl::DataLossError("the planner's answer is no plan and no error");
  if (answer.has_plan()) return FromProto(answer.plan(), request);
  absl::Status status(static_cast<absl::StatusCode>(answer.error_code()), answer.error_message());
  if (!answer.error_detail().empty())
    status.SetPayload(kErrorDetailUrl, absl::Cord(answer.error_detail()));
  return status;
}

}  // namespace takt::planner
