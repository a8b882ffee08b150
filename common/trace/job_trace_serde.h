// SPDX-License-Identifier: Apache-2.0
// Job traces to and from the wire.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/trace/job_trace.h"
#include "takt/v1/trace.pb.h"

namespace takt::trace {

// Converts everything except programs and steps.
v1::TraceHeader ToHeader(const JobTrace& trace);
// The result has no programs and steps.
JobTrace FromHeader(const v1::TraceHeader& header);

v1::TracedStep ToProto(const StepTrace& step, const ClockOffset& clock);

// Reads a trace that comes in pieces, in the order of takt.v1.GetTraceResponse.
class TraceReader {
 public:
  absl::Status AddHeader(const v1::TraceHeader& header);
  absl::Status AddProgram(const v1::Program& program);
  absl::Status AddStep(const v1::TracedStep& step);
  // kDataLoss: the pieces do not fit together.
  absl::StatusOr<JobTrace> Take();

 private:
  JobTrace trace_;
};

}  // namespace takt::trace
