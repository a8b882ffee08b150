// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/kept_trace_serde.h"

#include "common/base/status.h"
#include "common/program/program_serde.h"
#include "common/trace/encoding.h"
#include "common/trace/job_trace_serde.h"

namespace takt::traces {

std::string FormatHeader(const trace::JobTrace& header, const Holders& holders) {
  v1::KeptTraceHeader kept;
  *kept.mutable_header() = trace::ToHeader(header);
  for (const program::Program& program : header.programs) {
    *kept.add_programs() = program::ToProto(program);
  }
  for (const auto& [worker, incarnation] : holders) {
    v1::KeptTraceHeader::Holder& holder = *kept.add_holders();
    holder.set_worker(worker);
    holder.set_incarnation(incarnation);
  }
  return kept.SerializeAsString();
}

absl::StatusOr<KeptHeader> ParseHeader(const std::string& bytes) {
  v1::KeptTraceHeader kept;
  if (!kept.ParseFromString(bytes)) return absl::DataLossError("a trace's header is damaged");
  KeptHeader result{.header = trace::FromHeader(kept.header())};
  for (const v1::Program& program : kept.programs()) {
    ASSIGN_OR_RETURN(result.header.programs.emplace_back(), program::FromProto(program));
  }
  for (const v1::KeptTraceHeader::Holder& holder : kept.holders()) {
    result.holders.emplace_back(holder.worker(), holder.incarnation());
  }
  const mesh::Mesh& mesh = result.header.mesh;
  if (!mesh.IsPossible() || mesh.pp_size != static_cast<int>(result.header.programs.size()) ||
      result.holders.size() != static_cast<std::size_t>(mesh.size())) {
    return absl::DataLossError("a trace's header does not hold together");
  }
  return result;
}

std::string FormatStep(const std::string& encoded, const trace::ClockOffset& clock) {
  v1::TracedStep step;
  step.set_trace(encoded);
  step.set_clock_offset_nanos(clock.offset_nanos);
  step.set_clock_error_nanos(clock.error_nanos);
  return step.SerializeAsString();
}

absl::StatusOr<KeptStep> ParseStep(const std::string& bytes) {
  v1::TracedStep step;
  if (!step.ParseFromString(bytes)) return absl::DataLossError("a traced step is damaged");
  KeptStep kept{.clock = {.offset_nanos = step.clock_offset_nanos(),
                          .error_nanos = step.clock_error_nanos()}};
  ASSIGN_OR_RETURN(kept.step, trace::Decode(step.trace()));
  return kept;
}

}  // namespace takt::traces
