// SPDX-License-Identifier: Apache-2.0
// Lets a fake coordinator of tests answer GetTrace.
#pragma once

#include "cli/testing/fake_coordinator.h"
#include "common/program/program_serde.h"
#include "common/trace/job_trace_serde.h"
#include "common/trace/testing/synthetic_trace.h"

namespace takt::cli {

// Writes the first or, if the request asks for the newest, the last of the trace's steps.
inline grpc::Status WriteTrace(const trace::JobTrace& trace, const v1::GetTraceRequest& request,
                               grpc::ServerWriter<v1::GetTraceResponse>& writer) {
  v1::GetTraceResponse response;
  *response.mutable_header() = trace::ToHeader(trace);
  writer.Write(response);
  for (const program::Program& program : trace.programs) {
    *response.mutable_program() = program::ToProto(program);
    writer.Write(response);
  }
  for (const trace::RankTrace& rank : trace.ranks) {
    const trace::StepTrace& step = request.first_step() == 0 ? rank.steps.back() : rank.steps[0];
    *response.mutable_step() = trace::ToProto(step, rank.clock);
    writer.Write(response);
  }
  return grpc::Status::OK;
}

}  // namespace takt::cli
