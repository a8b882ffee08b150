// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/trace_stream.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/program_serde.h"
#include "common/trace/job_trace_serde.h"
#include "coordinator/timeouts/timeouts.h"
#include "proto/writing_stream.h"

namespace takt::coordinator_rpc {
namespace {

using Reactor = grpc::ServerWriteReactor<v1::GetTraceResponse>;

// The size is bounded by what is kept of a job.
std::vector<v1::GetTraceResponse> ToMessages(const trace::JobTrace& trace) {
  std::vector<v1::GetTraceResponse> messages;
  *messages.emplace_back().mutable_header() = trace::ToHeader(trace);
  for (const program::Program& program : trace.programs) {
    *messages.emplace_back().mutable_program() = program::ToProto(program);
  }
  for (int step = 0; step < trace.num_steps(); ++step) {
    for (const trace::RankTrace& rank : trace.ranks) {
      *messages.emplace_back().mutable_step() = trace::ToProto(rank.steps[step], rank.clock);
    }
  }
  return messages;
}

absl::StatusOr<trace::JobTrace> Find(const traces::TraceKeeper* traces,
                                     const v1::GetTraceRequest& request) {
  if (request.first_step() < 0 || request.last_step() < request.first_step()) {
    return InvalidField({.field = "steps",
                         .value = absl::StrCat(request.first_step(), "..", request.last_step()),
                         .rule = "must go from a step to the same or a later one",
                         .fix = "e.g. 5..8; without it the newest are taken"});
  }
  if (traces == nullptr) return absl::FailedPreconditionError("no traces are kept here");
  return traces->Read(request.name(), {.first = request.first_step(),
                                       .last = request.last_step(),
                                       .newest = request.newest_steps(),
                                       .around = request.around_step()});
}

class TraceStream final : public WritingStream<Reactor, v1::GetTraceResponse>,
                          public std::enable_shared_from_this<TraceStream> {
 public:
  TraceStream(grpc::CallbackServerContext* context, std::size_t num_messages)
      : WritingStream(context, num_messages, timeouts::kStreamStall) {}

  void Begin(std::vector<v1::GetTraceResponse> messages, const absl::Status& status) {
    KeepUntilDone(shared_from_this());
    for (v1::GetTraceResponse& message : messages) Push(std::move(message));
    FinishAfterWrites(status);
  }
  void OnCancel() override { Cut(absl::CancelledError("the client left")); }
};

}  // namespace

Reactor* StartTrace(grpc::CallbackServerContext* context, const absl::Status& job,
                    const traces::TraceKeeper* traces, const v1::GetTraceRequest& request) {
  const absl::StatusOr<trace::JobTrace> trace = job.ok() ? Find(traces, request) : job;
  std::vector<v1::GetTraceResponse> messages;
  if (trace.ok()) messages = ToMessages(*trace);
  auto stream = std::make_shared<TraceStream>(context, messages.size() + 1);
  TraceStream* const reactor = stream.get();
  stream->Begin(std::move(messages), trace.status());
  return reactor;
}

}  // namespace takt::coordinator_rpc
