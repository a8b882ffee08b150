// SPDX-License-Identifier: Apache-2.0
// Reports each step of a rank: the report for the coordinator, metrics, curves and the trace.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "worker/backend/fp8.h"
#include "worker/engine/engine.h"
#include "worker/session/curves.h"
#include "worker/session/fp8_metrics.h"
#include "worker/session/rank_runner.h"
#include "worker/session/stall_watch.h"
#include "worker/session/step_metrics.h"
#include "worker/session/trace_sampler.h"
#include "worker/train/trainer.h"

namespace takt::session {

// All pointers are borrowed for the reporter's life.
struct StepReporterOptions {
  const control::Assignment* assignment = nullptr;
  const train::Trainer* trainer = nullptr;
  const Clock* clock = nullptr;
  metrics::Registry* metrics = nullptr;          // may be null
  std::unique_ptr<Curves> curves;                // null: this rank writes none
  backend::Fp8Counters* fp8_counters = nullptr;  // of the rank's backends; may be null
  // Receives encoded traces (common/trace/encoding.h) on the engine's thread. May be empty.
  std::function<void(std::string)> on_trace;
};

// Thread class: only the engine's thread that reports steps, or the caller of its Run.
class StepReporter {
 public:
  explicit StepReporter(StepReporterOptions options);

  // Records the metrics and sends the trace of a step that has just ended.
  control::RankStepReport Completed(const engine::StepTiming& timing);
  // Adds the finished report to the curves and passes it on.
  void Tell(const control::RankStepReport& step, const std::function<void(Report)>& report);

 private:
  control::RankStepReport MakeReport(const engine::StepTiming& timing) const;
  // Says when `optimizer.barrier: auto` begins or ceases to wait for norms (train/foresight.h).
  void LogHold(StepId step);
  void SendTrace(const engine::StepTiming& timing, double step_seconds);

  const StepReporterOptions options_;
  bool holds_ = false;  // the last step did
  std::optional<StepMetrics> step_metrics_;
  std::optional<Fp8Metrics> fp8_metrics_;
  TraceSampler trace_sampler_{/*first_steps=*/4};
  StallLog stall_log_;
  const StallWatch stall_watch_{stall_log_};
};

}  // namespace takt::session
