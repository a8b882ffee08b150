// SPDX-License-Identifier: Apache-2.0
#include "common/trace/job_trace_serde.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/mesh/mesh_serde.h"
#include "common/program/program_serde.h"
#include "common/trace/encoding.h"

namespace takt::trace {
namespace {

template <class Field>
std::vector<double> ToVector(const Field& field) {
  return {field.begin(), field.end()};
}

template <class Field>
void PutGroups(const std::vector<cost::GroupCost>& groups, Field* field) {
  if (groups.size() == 1 && groups.front().size == 1) return;
  for (const cost::GroupCost& group : groups) {
    v1::TraceCosts::Group& out = *field->Add();
    out.set_size(group.size);
    out.set_link_latency(group.link.latency);
    out.set_link_seconds_per_byte(group.link.seconds_per_byte);
  }
}

// Older coordinators know of no groups.
template <class Field>
std::vector<cost::GroupCost> ToGroups(const Field& field) {
  std::vector<cost::GroupCost> groups;
  for (const v1::TraceCosts::Group& group : field) {
    groups.push_back({.size = group.size(),
                      .link = {.latency = group.link_latency(),
                               .seconds_per_byte = group.link_seconds_per_byte()}});
  }
  if (groups.empty()) groups.emplace_back();
  return groups;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the trace is damaged: ", what));
}

}  // namespace

v1::TraceHeader ToHeader(const JobTrace& trace) {
  v1::TraceHeader header;
  header.set_job(trace.job);
  header.set_generation(trace.generation.value());
  mesh::SetMesh(trace.mesh, header);
  v1::TraceCosts& costs = *header.mutable_predicted();
  const auto put = [](const std::vector<double>& values, auto* field) {
    field->Add(values.begin(), values.end());
  };
  put(trace.predicted.forward, costs.mutable_forward());
  put(trace.predicted.input_grad, costs.mutable_input_grad());
  put(trace.predicted.weight_grad, costs.mutable_weight_grad());
  put(trace.predicted.backward, costs.mutable_backward());
  costs.set_pair_ratio(trace.predicted.pair_ratio);
  costs.set_link_latency(trace.predicted.link.latency);
  costs.set_link_seconds_per_byte(trace.predicted.link.seconds_per_byte);
  put(trace.predicted.reduction, costs.mutable_reduction());
  costs.set_tied_reduction(trace.predicted.tied_reduction);
  put(trace.predicted.optimizer, costs.mutable_optimizer());
  put(trace.predicted.vocabulary_forward, costs.mutable_vocabulary_forward());
  put(trace.predicted.vocabulary_backward, costs.mutable_vocabulary_backward());
  put(trace.predicted.embedding_update, costs.mutable_embedding_update());
  put(trace.predicted.head_update, costs.mutable_head_update());
  PutGroups(trace.predicted.tensor, costs.mutable_tensor());
  costs.set_halves_run_in_turn(!trace.predicted.halves_run_beside);
  costs.set_terms(trace.predicted.terms);
  costs.set_chained_sums(trace.predicted.chained_sums);
  PutGroups(trace.predicted.context, costs.mutable_context());
  put(trace.layer_work, header.mutable_layer_work());
  return header;
}

JobTrace FromHeader(const v1::TraceHeader& header) {
  JobTrace trace{.job = header.job(),
                 .generation = Generation(header.generation()),
                 .mesh = mesh::MeshOf(header),
                 .layer_work = ToVector(header.layer_work())};
  const v1::TraceCosts& costs = header.predicted();
  trace.predicted.forward = ToVector(costs.forward());
  trace.predicted.input_grad = ToVector(costs.input_grad());
  trace.predicted.weight_grad = ToVector(costs.weight_grad());
  trace.predicted.backward = ToVector(costs.backward());
  if (costs.pair_ratio() > 0) trace.predicted.pair_ratio = costs.pair_ratio();
  trace.predicted.link = {.latency = costs.link_latency(),
                          .seconds_per_byte = costs.link_seconds_per_byte()};
  if (costs.reduction_size() > 0) trace.predicted.reduction = ToVector(costs.reduction());
  trace.predicted.tied_reduction = costs.tied_reduction();
  if (costs.optimizer_size() > 0) trace.predicted.optimizer = ToVector(costs.optimizer());
  if (costs.vocabulary_forward_size() > 0)
    trace.predicted.vocabulary_forward = ToVector(costs.vocabulary_forward());
  if (costs.vocabulary_backward_size() > 0)
    trace.predicted.vocabulary_backward = ToVector(costs.vocabulary_backward());
  if (costs.embedding_update_size() > 0)
    trace.predicted.embedding_update = ToVector(costs.embedding_update());
  if (costs.head_update_size() > 0) trace.predicted.head_update = ToVector(costs.head_update());
  trace.predicted.tensor = ToGroups(costs.tensor());
  trace.predicted.halves_run_beside = !costs.halves_run_in_turn();
  trace.predicted.terms = std::max(1, costs.terms());
  trace.predicted.chained_sums = costs.chained_sums();
  trace.predicted.context = ToGroups(costs.context());
  return trace;
}

v1::TracedStep ToProto(const StepTrace& step, const ClockOffset& clock) {
  v1::TracedStep proto;
  proto.set_trace(Encode(step));
  proto.set_clock_offset_nanos(clock.offset_nanos);
  proto.set_clock_error_nanos(clock.error_nanos);
  return proto;
}

absl::Status TraceReader::AddHeader(const v1::TraceHeader& header) {
  if (!mesh::MeshOf(header).IsPossible()) return Damaged("its mesh is impossible");
  trace_ = FromHeader(header);
  trace_.ranks.resize(trace_.mesh.size());
  return absl::OkStatus();
}

absl::Status TraceReader::AddProgram(const v1::Program& program) {
  ASSIGN_OR_RETURN(trace_.programs.emplace_back(), program::FromProto(program));
  return absl::OkStatus();
}

absl::Status TraceReader::AddStep(const v1::TracedStep& step) {
  ASSIGN_OR_RETURN(StepTrace decoded, Decode(step.trace()));
  const auto rank = static_cast<std::size_t>(decoded.rank.value());
  if (rank >= trace_.ranks.size()) return Damaged("a step is of a rank that there is not");
  trace_.ranks[rank].clock = {.offset_nanos = step.clock_offset_nanos(),
                              .error_nanos = step.clock_error_nanos()};
  trace_.ranks[rank].steps.push_back(std::move(decoded));
  return absl::OkStatus();
}

absl::StatusOr<JobTrace> TraceReader::Take() {
  if (absl::Status status = CheckJobTrace(trace_); !status.ok()) return Damaged(status.message());
  return std::move(trace_);
}

}  // namespace takt::trace
