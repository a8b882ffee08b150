// SPDX-License-Identifier: Apache-2.0
#include "worker/session/step_reporter.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/program/program.h"
#include "common/trace/encoding.h"

namespace takt::session {

StepReporter::StepReporter(StepReporterOptions options)
    : options_(std::move(options)), stall_log_(*options_.clock) {
  if (options_.metrics == nullptr) return;
  const control::Assignment& assignment = *options_.assignment;
  options_.metrics->ServeOnDemand(
      metrics::kOpDuration, metrics::ServedOnDemand(metrics::kOpDuration, assignment.mesh.size()));
  step_metrics_.emplace(*options_.metrics, assignment.key.job, assignment.mesh.At(assignment.rank),
                        assignment.program);
  if (assignment.job.fp8 == model::Fp8Recipe::kNone || options_.fp8_counters == nullptr) return;
  fp8_metrics_.emplace(*options_.metrics, assignment.key.job, assignment.mesh.At(assignment.rank),
                       *options_.fp8_counters);
}

control::RankStepReport StepReporter::Completed(const engine::StepTiming& timing) {
  const control::RankStepReport report = MakeReport(timing);
  if (step_metrics_.has_value()) {
    step_metrics_->Record(*timing.timings);
    step_metrics_->RecordOverlap(options_.trainer->result(timing.step), timing);
    step_metrics_->RecordExperts(options_.trainer->expert_loads(timing.step));
  }
  if (fp8_metrics_.has_value()) fp8_metrics_->Record();
  LogHold(timing.step);
  SendTrace(timing, report.step_seconds);
  return report;
}

void StepReporter::Tell(const control::RankStepReport& step,
                        const std::function<void(Report)>& report) {
  if (options_.curves != nullptr) options_.curves->Add(step);
  report(step);
}

control::RankStepReport StepReporter::MakeReport(const engine::StepTiming& timing) const {
  const train::StepResult result = options_.trainer->result(timing.step);
  return {.rank = options_.assignment->rank,
          .step = timing.step,
          .step_seconds = static_cast<double>(timing.end_nanos - timing.start_nanos) * 1e-9,
          .busy_seconds = static_cast<double>(timing.compute_nanos) * 1e-9,
          .loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = result.learning_rate,
          .tokens = result.tokens,
          .expert_imbalance = options_.trainer->expert_imbalance(timing.step)};
}

void StepReporter::LogHold(StepId step) {
  const control::Assignment& assignment = *options_.assignment;
  if (!program::OverlapsSteps(assignment.program)) return;
  const bool holds = options_.trainer->result(step).held;
  if (std::exchange(holds_, holds) == holds || assignment.rank != Rank(0)) return;
  Log(LogLevel::kInfo,
      holds ? "steps wait for the norm of their gradients until some in a row were not clipped"
            : "steps no longer wait for the norm of their gradients: none was clipped of late",
      {{"job", assignment.key.job}, {"step", absl::StrCat(step.value())}});
}

void StepReporter::SendTrace(const engine::StepTiming& timing, double step_seconds) {
  if (!options_.on_trace || !trace_sampler_.Takes(timing.step, step_seconds)) return;
  trace::StepTrace trace{
      .rank = options_.assignment->rank, .step = timing.step, .start_nanos = timing.start_nanos};
  const auto add_all = [](const std::vector<engine::InstructionTiming>& timings,
                          std::vector<trace::Span>& spans) {
    spans.reserve(timings.size());
    for (const engine::InstructionTiming& each : timings) {
      spans.push_back({each.start_nanos, each.end_nanos});
    }
  };
  add_all(*timing.timings, trace.body);
  add_all(*timing.meetings, trace.meetings);
  if (timing.prologue != nullptr) add_all(*timing.prologue, trace.prologue);
  // The receives of a step are posted while the step before still runs.
  std::int64_t first_start = timing.start_nanos;
  for (const trace::Span& span : trace.body) {
    first_start = std::min(first_start, span.start_nanos);
  }
  trace.stalls = stall_log_.Between(first_start, timing.end_nanos);
  options_.on_trace(trace::Encode(trace));
}

}  // namespace takt::session
