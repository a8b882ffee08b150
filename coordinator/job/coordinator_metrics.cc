// SPDX-License-Identifier: Apache-2.0
// Coordinator: what it tells about jobs and workers on /metrics.
#include "absl/strings/str_cat.h"
#include "common/metrics/catalog.h"
#include "coordinator/job/coordinator.h"

namespace takt::job {

void Coordinator::DropMetrics(const Outbox& outbox) {
  for (const std::string& id : outbox.removed) {
    if (const JobView job = board_.FindById(id)) options_.metrics->DropJob(job->name);
  }
}

void Coordinator::RecordMetrics(const Outbox& outbox) {
  metrics::Registry& registry = *options_.metrics;
  std::map<std::string, const store::JobRecord*> jobs;
  for (const store::JobRecord& job : outbox.published) jobs[job.id] = &job;
  for (const store::StepRecord& step : outbox.changes.steps) {
    const auto job = jobs.find(step.job_id);
    if (job == jobs.end()) continue;
    const std::string& name = job->second->name;
    registry.Histogram(metrics::kStepDuration, {name}).Observe(step.step_seconds);
    registry.Counter(metrics::kTokens, {name}).Increment(static_cast<double>(step.tokens));
    registry.Gauge(metrics::kLoss, {name}).Set(step.loss);
    registry.Gauge(metrics::kGradNorm, {name}).Set(step.grad_norm);
    registry.Gauge(metrics::kLearningRate, {name}).Set(step.learning_rate);
    registry.Gauge(metrics::kJobStep, {name}).Set(static_cast<double>(step.step.value()));
    registry.Gauge(metrics::kLastStepTimestamp, {name})
        .Set(absl::ToDoubleSeconds(step.time - absl::UnixEpoch()));
    for (std::size_t p = 0; p < step.bubble_by_pp_rank.size(); ++p) {
      registry.Gauge(metrics::kBubbleFraction, {name, absl::StrCat(p)})
          .Set(step.bubble_by_pp_rank[p]);
    }
  }
  for (const SettledCheckpoint& checkpoint : outbox.checkpoints) {
    const std::string& name = checkpoint.job;
    registry.Counter(metrics::kCheckpoints, {name, checkpoint.failed ? "failed" : "done"})
        .Increment();
    if (checkpoint.failed) continue;
    registry.Histogram(metrics::kCheckpointDuration, {name, "snapshot"})
        .Observe(checkpoint.snapshot_seconds);
    registry.Histogram(metrics::kCheckpointDuration, {name, "write"})
        .Observe(checkpoint.write_seconds);
  }
  for (const RecoveryTimes& times : outbox.recoveries) {
    const auto observe = [&](const char* phase, absl::Duration time) {
      registry.Histogram(metrics::kRecoveryDuration, {phase}).Observe(absl::ToDoubleSeconds(time));
    };
    observe("stop", times.stop);
    observe("queue", times.queue);
    observe("start", times.start);
  }
  for (const auto& [id, job] : jobs) {
    if (job->checkpoint) {
      registry.Gauge(metrics::kCheckpointStep, {job->name})
          .Set(static_cast<double>(job->checkpoint->step.value()));
    }
    if (job->plan.schedule.empty() || store::HasEnded(job->state)) continue;
    registry.Gauge(metrics::kBubblePredicted, {job->name}).Set(job->plan.predicted_bubble_fraction);
    registry.Gauge(metrics::kStepPredicted, {job->name}).Set(job->plan.predicted_step_seconds);
  }
  std::map<store::JobState, int> by_state = board_.CountByState();
  for (int state = 1; state <= static_cast<int>(store::JobState::kPaused); ++state) {
    const auto s = static_cast<store::JobState>(state);
    registry.Gauge(metrics::kJobs, {store::Name(s)}).Set(by_state[s]);
  }
  int idle = 0, busy = 0, lost = 0, drained = 0;
  for (const auto& [name, worker] : cluster_->workers()) {
    drained += worker.drained;
    idle += worker.state() == membership::WorkerState::kIdle;
    busy += worker.state() == membership::WorkerState::kBusy;
    lost += worker.state() == membership::WorkerState::kLost;
  }
  registry.Gauge(metrics::kWorkers, {"idle"}).Set(idle);
  registry.Gauge(metrics::kWorkers, {"busy"}).Set(busy);
  registry.Gauge(metrics::kWorkers, {"lost"}).Set(lost);
  registry.Gauge(metrics::kWorkers, {"drained"}).Set(drained);
}

}  // namespace takt::job
