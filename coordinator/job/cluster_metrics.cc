// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster_metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/explain/explain.h"
#include "common/metrics/catalog.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {
namespace {

using store::JobRecord;
using store::JobState;

constexpr int kNumStates = static_cast<int>(JobState::kPaused);

// With more workers only those with some trouble have series of their own, and at most so many.
// docs/metrics.md says so.
constexpr std::size_t kMostNamedWorkers = 1000;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

double Value(StepId step) { return static_cast<double>(step.value()); }

// Returns when the job last began to run, nullopt if it never did.
std::optional<absl::Time> RunningSince(const JobRecord& job) {
  const auto last =
      std::find_if(job.transitions.rbegin(), job.transitions.rend(),
                   [](const auto& transition) { return transition.state == JobState::kRunning; });
  if (last == job.transitions.rend()) return std::nullopt;
  return last->time;
}

bool IsFinite(const store::StepRecord& step) {
  return std::isfinite(step.loss) && std::isfinite(step.grad_norm);
}

// True if the worker was told to end, or is drained for maintenance.
bool MayBeLost(const membership::Worker& worker) { return worker.leaving || worker.drained; }

}  // namespace

void ClusterMetrics::Drop(const Outbox& outbox) {
  for (const std::string& id : outbox.removed) {
    if (const JobView job = board_.FindById(id)) DropJob(job->name);
  }
}

void ClusterMetrics::DropJob(const std::string& name) {
  registry_.Drop({{"job", name}});
  jobs_.erase(name);
}

void ClusterMetrics::Record(const Outbox& outbox, absl::Time now) {
  std::map<std::string, const std::string*> names;  // by id, of the jobs that have series
  for (const JobView& view : outbox.published) {
    const JobRecord& job = *view;
    if (job.end_time && *job.end_time + timeouts::kKeepEndedMetrics <= now) continue;
    names[job.id] = &job.name;
    RecordJob(job, jobs_[job.name]);
  }
  for (const store::StepRecord& step : outbox.changes.steps) {
    const auto name = names.find(step.job_id);
    if (name != names.end()) CountStep(*name->second, step);
  }
  for (const SettledCheckpoint& checkpoint : outbox.checkpoints) CountCheckpoint(checkpoint);
  for (const std::string& job : outbox.recovering)
    registry_.Counter(metrics::kRecoveries, {job}).Increment();
  for (const RecoveryTimes& times : outbox.recoveries) {
    const auto observe = [&](const char* phase, absl::Duration time) {
      registry_.Histogram(metrics::kRecoveryDuration, {phase}).Observe(absl::ToDoubleSeconds(time));
    };
    observe("stop", times.stop);
    observe("queue", times.queue);
    observe("start", times.start);
  }
  registry_.Counter(metrics::kWorkerLosses).Increment(outbox.workers_lost);
}

void ClusterMetrics::SetReadOnly(bool read_only) {
  registry_.Gauge(metrics::kReadOnly).Set(read_only ? 1 : 0);
}

void ClusterMetrics::SetHeldJobs(std::size_t count) {
  registry_.Gauge(metrics::kHeldJobs).Set(static_cast<double>(count));
}

prometheus::Gauge& ClusterMetrics::GaugeOf(const std::string& job, const metrics::Metric& metric,
                                           Shown& shown) {
  prometheus::Gauge*& gauge = shown.gauges[&metric];
  if (gauge == nullptr) gauge = &registry_.Gauge(metric, {job});
  return *gauge;
}

void ClusterMetrics::RecordJob(const JobRecord& job, Shown& shown) {
  const std::string& name = job.name;
  shown.end = job.end_time;
  // A job is recorded after each step, and a cluster has thousands of jobs.
  const std::pair described(job.generation, job.state);
  if (shown.described != described) DescribeJob(job, shown);
  shown.described = described;
  const StepId last = std::max(job.resumed_step, job.last_step ? job.last_step->step : StepId(0));
  GaugeOf(name, metrics::kJobStep, shown).Set(Value(last));
  GaugeOf(name, metrics::kJobEta, shown).Set(store::EtaSeconds(job));
  if (!job.plan.schedule.empty()) {
    GaugeOf(name, metrics::kReplanGain, shown).Set(job.replan_gain);
    GaugeOf(name, metrics::kStraggler, shown).Set(job.straggler);
  }
  RecordLastStep(job, shown);
  RecordCheckpoint(job, shown);
  shown.id = job.id;
  RecordNewSplit(name, shown);
}

void ClusterMetrics::RecordNewSplit(const std::string& job, Shown& shown) {
  SplitView split = board_.FindSplit(shown.id);
  if (split != nullptr && split != shown.split) RecordSplit(job, *split);
  shown.split = std::move(split);
}

void ClusterMetrics::DescribeJob(const JobRecord& job, Shown& shown) {
  const std::string& name = job.name;
  for (int state = 1; state <= kNumStates; ++state) {
    registry_.Gauge(metrics::kJobState, {name, store::Name(static_cast<JobState>(state))})
        .Set(state == static_cast<int>(job.state) ? 1 : 0);
  }
  registry_.Gauge(metrics::kJobTargetStep, {name}).Set(static_cast<double>(job.steps));
  // A counter of something that may never happen is there from the beginning, with the value 0.
  registry_.Counter(metrics::kTokens, {name});
  registry_.Counter(metrics::kNonfiniteSteps, {name});
  registry_.Counter(metrics::kRecoveries, {name});
  for (const char* result : {"done", "failed"})
    registry_.Counter(metrics::kCheckpoints, {name, result});
  for (const char* phase : {"snapshot", "write"})
    registry_.Histogram(metrics::kCheckpointDuration, {name, phase});
  RecordPlan(job, shown);
}

void ClusterMetrics::RecordPlan(const JobRecord& job, Shown& shown) {
  if (job.plan.schedule.empty()) return;
  registry_.Gauge(metrics::kBubblePredicted, {job.name}).Set(job.plan.predicted_bubble_fraction);
  registry_.Gauge(metrics::kStepPredicted, {job.name}).Set(job.plan.predicted_step_seconds);
  const int pp_size = job.plan.mesh.pp_size;
  for (int p = pp_size; p < shown.pp_size; ++p)
    registry_.Drop({{"job", job.name}, {"pp_rank", absl::StrCat(p)}});
  if (std::ssize(shown.bubbles) > pp_size) shown.bubbles.resize(pp_size);
  shown.pp_size = pp_size;
  for (std::size_t p = 0; p < job.plan.memory.size(); ++p) {
    registry_.Gauge(metrics::kMemoryPredicted, {job.name, absl::StrCat(p)})
        .Set(static_cast<double>(job.plan.memory[p].total()));
  }
}

void ClusterMetrics::RecordLastStep(const JobRecord& job, Shown& shown) {
  const std::optional<absl::Time> since = RunningSince(job);
  const absl::Time begin = since.value_or(absl::InfinitePast());
  const absl::Time last = job.last_step ? job.last_step->time : absl::InfinitePast();
  if (since || job.last_step) {
    GaugeOf(job.name, metrics::kLastStepTimestamp, shown).Set(UnixSeconds(std::max(begin, last)));
  }
  if (!job.last_step) return;
  const store::StepRecord& step = *job.last_step;
  GaugeOf(job.name, metrics::kLoss, shown).Set(step.loss);
  GaugeOf(job.name, metrics::kGradNorm, shown).Set(step.grad_norm);
  GaugeOf(job.name, metrics::kLearningRate, shown).Set(step.learning_rate);
  const int pp_size =
      std::min(job.plan.mesh.pp_size, static_cast<int>(step.bubble_by_pp_rank.size()));
  for (int p = std::ssize(shown.bubbles); p < pp_size; ++p)
    shown.bubbles.push_back(
        &registry_.Gauge(metrics::kBubbleFraction, {job.name, absl::StrCat(p)}));
  for (int p = 0; p < pp_size; ++p) shown.bubbles[p]->Set(step.bubble_by_pp_rank[p]);
  const double possible = job.plan.matmul_flops_per_second * step.step_seconds;
  GaugeOf(job.name, metrics::kModelFlopsUtilization, shown)
      .Set(possible > 0 ? job.plan.model_flops / possible : 0);
}

void ClusterMetrics::RecordCheckpoint(const JobRecord& job, Shown& shown) {
  GaugeOf(job.name, metrics::kCheckpointEvery, shown)
      .Set(static_cast<double>(job.plan.checkpoint_every_steps));
  GaugeOf(job.name, metrics::kCheckpointStep, shown)
      .Set(Value(std::max(job.resumed_step, job.checkpoint ? job.checkpoint->step : StepId(0))));
  const auto first =
      std::ranges::find(job.transitions, JobState::kRunning, &store::Transition::state);
  if (job.checkpoint || first != job.transitions.end()) {
    GaugeOf(job.name, metrics::kCheckpointTimestamp, shown)
        .Set(UnixSeconds(job.checkpoint ? job.checkpoint->time : first->time));
  }
}

void ClusterMetrics::RecordSplit(const std::string& job, const StepSplit& split) {
  for (int part = 0; part < explain::kNumParts; ++part) {
    registry_
        .Gauge(metrics::kStepComponent,
               {job, std::string(explain::Name(static_cast<explain::Part>(part)))})
        .Set(split.parts[part]);
  }
  for (std::size_t p = 0; p < split.pp_ranks.size(); ++p) {
    const PpRankSplit& rank = split.pp_ranks[p];
    const std::string pp_rank = absl::StrCat(p);
    registry_.Gauge(metrics::kRankCompute, {job, pp_rank}).Set(rank.compute_seconds);
    registry_.Gauge(metrics::kRankComputePredicted, {job, pp_rank})
        .Set(rank.predicted_compute_seconds);
    for (int cause = 1; cause <= trace::kNumCauses; ++cause) {
      registry_
          .Gauge(metrics::kRankIdle,
                 {job, pp_rank, std::string(trace::Name(static_cast<trace::Cause>(cause)))})
          .Set(rank.idle_seconds[cause]);
    }
  }
}

void ClusterMetrics::CountStep(const std::string& job, const store::StepRecord& step) {
  registry_.Histogram(metrics::kStepDuration, {job}).Observe(step.step_seconds);
  registry_.Counter(metrics::kTokens, {job}).Increment(static_cast<double>(step.tokens));
  if (!IsFinite(step)) registry_.Counter(metrics::kNonfiniteSteps, {job}).Increment();
  if (step.validation_loss)
    registry_.Gauge(metrics::kValidationLoss, {job}).Set(*step.validation_loss);
}

void ClusterMetrics::CountCheckpoint(const SettledCheckpoint& checkpoint) {
  const std::string& job = checkpoint.job;
  registry_.Counter(metrics::kCheckpoints, {job, checkpoint.failed ? "failed" : "done"})
      .Increment();
  if (checkpoint.failed) return;
  registry_.Histogram(metrics::kCheckpointDuration, {job, "snapshot"})
      .Observe(checkpoint.snapshot_seconds);
  registry_.Histogram(metrics::kCheckpointDuration, {job, "write"})
      .Observe(checkpoint.write_seconds);
}

void ClusterMetrics::Tick(const std::map<std::string, membership::Worker>& workers,
                          absl::Time now) {
  std::vector<std::string> over;
  for (auto& [name, shown] : jobs_) {
    if (!shown.end) continue;
    if (*shown.end + timeouts::kKeepEndedMetrics <= now) {
      over.push_back(name);
    } else {
      // The last step is explained after the end, and of a short job no other one. Nothing else
      // records such a job again.
      RecordNewSplit(name, shown);
    }
  }
  for (const std::string& name : over) DropJob(name);
  std::map<JobState, int> by_state = board_.CountByState();
  for (int state = 1; state <= kNumStates; ++state) {
    const auto s = static_cast<JobState>(state);
    registry_.Gauge(metrics::kJobs, {store::Name(s)}).Set(by_state[s]);
  }
  for (const char* phase : {"stop", "queue", "start"})
    registry_.Histogram(metrics::kRecoveryDuration, {phase});
  RecordWorkers(workers);
}

void ClusterMetrics::RecordWorkers(const std::map<std::string, membership::Worker>& workers) {
  int idle = 0, busy = 0, away = 0, lost = 0, drained = 0, quarantined = 0;
  for (const auto& [name, worker] : workers) {
    const membership::WorkerState state = worker.state();
    drained += worker.drained;
    quarantined += worker.blame.quarantined;
    idle += state == membership::WorkerState::kIdle;
    busy += state == membership::WorkerState::kBusy;
    away += state == membership::WorkerState::kAway;
    lost += state == membership::WorkerState::kLost && !MayBeLost(worker);
  }
  ShowWorkers(workers);
  registry_.Gauge(metrics::kWorkers, {"idle"}).Set(idle);
  registry_.Gauge(metrics::kWorkers, {"busy"}).Set(busy);
  registry_.Gauge(metrics::kWorkers, {"away"}).Set(away);
  registry_.Gauge(metrics::kWorkers, {"lost"}).Set(lost);
  registry_.Gauge(metrics::kWorkers, {"drained"}).Set(drained);
  registry_.Gauge(metrics::kWorkers, {"quarantined"}).Set(quarantined);
}

void ClusterMetrics::ShowWorkers(const std::map<std::string, membership::Worker>& workers) {
  const bool names_all = workers.size() <= kMostNamedWorkers;
  std::map<std::string, ShownWorker> shown;
  for (const auto& [name, worker] : workers) {
    const bool is_lost = worker.state() == membership::WorkerState::kLost;
    if (shown.size() == kMostNamedWorkers || (is_lost && MayBeLost(worker))) continue;
    const ShownWorker now{.connected = worker.attached(), .score = worker.blame.score};
    if (!names_all && now.connected && now.score == 0) continue;
    shown.try_emplace(shown.end(), name, now);
    const auto before = workers_.find(name);
    if (before != workers_.end() && before->second == now) continue;
    registry_.Gauge(metrics::kWorkerConnected, {name}).Set(now.connected ? 1 : 0);
    registry_.Gauge(metrics::kWorkerFaultScore, {name}).Set(now.score);
  }
  for (const auto& [name, before] : workers_) {
    if (shown.contains(name)) continue;
    registry_.Remove(metrics::kWorkerConnected, {name});
    registry_.Remove(metrics::kWorkerFaultScore, {name});
  }
  workers_ = std::move(shown);
}

}  // namespace takt::job
