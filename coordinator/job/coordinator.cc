// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/coordinator.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/metrics/catalog.h"

namespace takt::job {

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options, store::Store* store) {
  ASSIGN_OR_RETURN(store::Snapshot snapshot, store->Load());
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), store));
  ClusterOptions cluster = coordinator->options_.cluster;
  cluster.plan = [self = coordinator.get()](PlanRequest request) {
    absl::MutexLock lock(&self->mutex_);
    self->plans_.push_back(std::move(request));
  };
  coordinator->cluster_ = std::make_unique<Cluster>(std::move(cluster), std::move(snapshot), store,
                                                    &coordinator->rendezvous_, coordinator->now());
  // Readers see the restored jobs before the first RPC comes.
  RETURN_IF_ERROR(coordinator->Flush(coordinator->cluster_->TakeOutbox()));
  coordinator->planning_thread_ = std::thread(&Coordinator::Plan, coordinator.get());
  coordinator->deciding_thread_ = std::thread(&Coordinator::Decide, coordinator.get());
  return coordinator;
}

Coordinator::~Coordinator() {
  Stop();
  if (deciding_thread_.joinable()) deciding_thread_.join();
  if (planning_thread_.joinable()) planning_thread_.join();
}

void Coordinator::Post(Event event) {
  const Moment arrival = now();
  absl::MutexLock lock(&mutex_);
  if (!stopping_) events_.push_back({std::move(event), arrival});
}

bool Coordinator::TryPost(Event event) {
  const Moment arrival = now();
  absl::MutexLock lock(&mutex_);
  if (events_.size() >= options_.max_events) return false;
  if (!stopping_) events_.push_back({std::move(event), arrival});
  return true;
}

void Coordinator::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

absl::Status Coordinator::WaitForEnd() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&stopping_));
  return failure_;
}

void Coordinator::Decide() {
  pthread_setname_np(pthread_self(), "takt-decide");
  while (DecideOnce()) {
  }
}

bool Coordinator::DecideOnce() {
  std::deque<TimedEvent> events;
  // Taken before the events are: what was heard until then counts before any lease is judged.
  Moment before;
  {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !events_.empty(); };
    const absl::Duration batch = options_.cluster.batch_interval;
    mutex_.AwaitWithTimeout(absl::Condition(&some),
                            cluster_->HasWaitingBatch() ? std::min(batch, options_.tick) : options_.tick);
    if (stopping_) return false;
    before = now();
    events.swap(events_);
  }
  for (const TimedEvent& event : events) event.event(*cluster_, event.arrival);
  cluster_->Tick(before);
  const absl::Status status = Flush(cluster_->TakeOutbox());
  if (status.ok()) return true;
  Log(LogLevel::kError, "state cannot be stored; the coordinator ends", {{"error", status.ToString()}});
  absl::MutexLock lock(&mutex_);
  failure_ = status;
  stopping_ = true;
  return false;
}

absl::Status Coordinator::Flush(Outbox outbox) {
  if (!outbox.changes.empty()) RETURN_IF_ERROR(store_->Commit(outbox.changes));
  if (options_.metrics != nullptr) RecordMetrics(outbox);
  for (const std::string& id : outbox.removed) board_.Remove(id);
  for (store::JobRecord& job : outbox.published) board_.Publish(std::move(job));
  for (const std::function<void()>& effect : outbox.effects) effect();
  return absl::OkStatus();
}

void Coordinator::Plan() {
  pthread_setname_np(pthread_self(), "takt-plan");
  while (true) {
    PlanRequest request;
    {
      absl::MutexLock lock(&mutex_);
      const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !plans_.empty(); };
      mutex_.Await(absl::Condition(&some));
      if (stopping_) return;
      request = std::move(plans_.front());
      plans_.pop_front();
    }
    auto plan = std::make_shared<absl::StatusOr<plan::Plan>>(plan::MakePlan(request.spec, request.options));
    Post([id = request.job_id, generation = request.generation, plan](Cluster& cluster, Moment now) {
      cluster.Planned(id, generation, std::move(*plan), now);
    });
  }
}

void Coordinator::RecordMetrics(const Outbox& outbox) {
  metrics::Registry& registry = *options_.metrics;
  for (const std::string& id : outbox.removed) {
    if (const JobView job = board_.FindById(id)) registry.DropJob(job->name);
  }
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
    registry.Gauge(metrics::kLastStepTimestamp, {name}).Set(absl::ToDoubleSeconds(step.time - absl::UnixEpoch()));
    for (std::size_t p = 0; p < step.bubble_by_pp_rank.size(); ++p) {
      registry.Gauge(metrics::kBubbleFraction, {name, absl::StrCat(p)}).Set(step.bubble_by_pp_rank[p]);
    }
  }
  for (const auto& [id, job] : jobs) {
    if (job->plan.schedule.empty() || store::HasEnded(job->state)) continue;
    registry.Gauge(metrics::kBubblePredicted, {job->name}).Set(job->plan.predicted_bubble_fraction);
    registry.Gauge(metrics::kStepPredicted, {job->name}).Set(job->plan.predicted_step_seconds);
  }
  // Of the state before this outbox is shown plus one tick at most: gauges, not a ledger.
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
