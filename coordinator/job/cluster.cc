// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/job/spec_serde.h"

namespace takt::job {

using store::JobState;

namespace {

constexpr std::size_t kMaxNotices = 20;

// The last step that is committed, or part of the checkpoint that the generation went on from.
StepId LastStep(const store::JobRecord& record) {
  return std::max(record.resumed_step, record.last_step ? record.last_step->step : StepId(0));
}

}  // namespace

Cluster::Cluster(ClusterOptions options, store::Snapshot snapshot, store::Store* store,
                 Rendezvous* rendezvous, Moment now)
    : options_(std::move(options)),
      store_(store),
      rendezvous_(rendezvous),
      members_(options_.membership, snapshot.drained),
      last_number_(snapshot.last_number),
      generations_(std::move(snapshot.generations)) {
  for (store::JobRecord& record : snapshot.jobs) {
    JobEntry& job = jobs_[record.number];
    job.record = std::move(record);
    outbox_.published.push_back(job.record);
    if (!store::HasEnded(job.record.state)) Restore(job, now);
  }
}

// A job that had not ended when the coordinator did.
void Cluster::Restore(JobEntry& job, Moment now) {
  absl::StatusOr<config::JobSpec> spec = ParseSpec(job.record.spec);
  if (!spec.ok()) {
    job.record.invalid_input = true;
    job.record.violations = FieldErrorsOf(spec.status());
    SetState(job, JobState::kFailed,
             absl::StrCat("this program refuses the job: ", spec.status().message()), now);
    return;
  }
  job.spec = *std::move(spec);
  const JobState state = job.record.state;
  if (state == JobState::kRunning || state == JobState::kRecovering) {
    job.run = MakeRun(job, now);
    if (job.run->stop) job.run->stop_since = now.steady;
    for (const control::BoundRank& bound : job.record.ranks) {
      job.hands.insert(bound.worker);
      job.run->ranks.push_back({.bound = bound, .phase = RankPhase::kAway});
      job.run->ranks.back().status = {.rank = bound.rank, .worker = bound.worker};
    }
    job.steps.emplace(job.record.plan.mesh, StepId(job.run->committed_steps));
    rendezvous_->Open(job.record.name, job.record.generation);
    return;
  }
  if (state != JobState::kPlanning && state != JobState::kStarting) return;
  job.record.ranks.clear();
  const std::optional<store::JobStop> stop = std::exchange(job.record.stop, std::nullopt);
  const std::optional<store::JobHalt> halt = std::exchange(job.record.halt, std::nullopt);
  if (stop && stop->state != JobState::kQueued) {
    job.record.invalid_input = stop->invalid_input;
    job.record.violations = stop->violations;
    SetState(job, stop->state, stop->reason, now);
  } else if (halt) {
    SetState(job, halt->next, halt->reason, now);
  } else {
    SetState(job, JobState::kQueued,
             absl::StrCat("the coordinator was restarted while the job was ", store::Name(state)),
             now);
  }
}

JobRun Cluster::MakeRun(const JobEntry& job, Moment now) const {
  const store::JobRecord& record = job.record;
  JobRun run{.state = record.state,
             .stop = record.stop,
             .halt = record.halt,
             .has_checkpoints = job.spec.checkpoint.has_value(),
             .recoveries = record.recoveries,
             .checkpoint = record.checkpoint ? record.checkpoint->step : StepId(0),
             .steps = record.steps,
             .committed_steps = LastStep(record).value(),
             .since = now.steady};
  for (const store::Transition& transition : record.transitions) {
    if (transition.state == JobState::kRecovering) run.past_faults.push_back(transition.reason);
  }
  const std::size_t kept = std::min<std::size_t>(run.past_faults.size(), record.recoveries.count);
  run.past_faults.erase(run.past_faults.begin(), run.past_faults.end() - kept);
  return run;
}

Cluster::JobEntry* Cluster::FindJob(const std::string& name) {
  const auto it = std::ranges::find_if(
      jobs_, [&](const auto& entry) { return entry.second.record.name == name; });
  return it == jobs_.end() ? nullptr : &it->second;
}

const Cluster::JobEntry* Cluster::FindJob(const std::string& name) const {
  return const_cast<Cluster*>(this)->FindJob(name);
}

Cluster::JobEntry* Cluster::FindRunning(const control::JobKey& key) {
  JobEntry* const job = FindJob(key.job);
  return job != nullptr && job->run && job->record.generation == key.generation ? job : nullptr;
}

void Cluster::SetState(JobEntry& job, JobState state, std::string reason, Moment now) {
  Log(LogLevel::kInfo, "job state",
      {{"job", job.record.name},
       {"generation", absl::StrCat(job.record.generation.value())},
       {"from", job.record.transitions.empty() ? "" : store::Name(job.record.state)},
       {"to", store::Name(state)},
       {"reason", reason}});
  job.record.state = state;
  job.record.reason = reason;
  job.record.transitions.push_back({state, now.wall, std::move(reason)});
  if (store::HasEnded(state)) job.record.end_time = now.wall;
  Touch(job);
}

void Cluster::SetReason(JobEntry& job, std::string reason) {
  if (job.record.reason == reason) return;
  Log(LogLevel::kInfo, "job reason",
      {{"job", job.record.name}, {"state", store::Name(job.record.state)}, {"reason", reason}});
  job.record.reason = std::move(reason);
  Touch(job);
}

void Cluster::AddNotice(JobEntry& job, std::string notice) {
  std::vector<std::string>& notices = job.record.notices;
  if (std::ranges::find(notices, notice) != notices.end()) return;
  Log(LogLevel::kWarning, "job warning", {{"job", job.record.name}, {"warning", notice}});
  if (notices.size() == kMaxNotices) notices.erase(notices.begin());
  notices.push_back(std::move(notice));
  Touch(job);
}

void Cluster::CollectSteps(JobEntry& job, bool rest, Moment now) {
  for (store::StepRecord& step : rest ? job.steps->TakeRest() : job.steps->TakeReady()) {
    step.job_id = job.record.id;
    step.generation = job.record.generation;
    step.schedule = job.record.plan.schedule;
    step.time = now.wall;
    job.record.last_step = step;
    job.run->committed_steps = step.step.value();
    grown_.insert(job.record.id);
    outbox_.changes.steps.push_back(std::move(step));
  }
  if (!std::exchange(job.acknowledge, false)) return;
  // Effects come after the commit: what is acknowledged is durable.
  for (const auto& [rank, sequence] : job.steps->TakeAcknowledgements(job.steps->last_taken())) {
    outbox_.effects.push_back(
        [session = job.bulk[rank], acknowledged = control::ReportsAcknowledged{
                                       {job.record.name, job.record.generation}, sequence}] {
          session->Acknowledge(acknowledged);
        });
  }
}

void Cluster::SendTo(const std::string& worker, control::Command command) {
  const membership::Worker* const found = members_.Find(worker);
  if (found == nullptr) return;
  const auto session = sessions_.find(found->session);
  if (session == sessions_.end()) return;
  outbox_.effects.push_back(
      [session = session->second, command = std::move(command)] { session->Send(command); });
}

void Cluster::Tick(Moment now) {
  for (const membership::Loss& loss : members_.Expire(now)) {
    ++outbox_.workers_lost;
    HandleLoss(loss, now);
  }
  rendezvous_->Expire(now.steady);
  const bool batch = now.steady - last_batch_ >= options_.batch_interval;
  if (batch && HasWaitingBatch()) last_batch_ = now.steady;
  for (auto& [number, job] : jobs_) {
    if (!job.run) continue;
    if (batch) CollectSteps(job, /*rest=*/false, now);
    AdvanceCheckpoints(job, now);
    Advance(job, now);
  }
  ServeQueue(now);
  if (batch) {
    for (store::LogRecord& line : waiting_logs_) {
      grown_.insert(line.job_id);
      outbox_.changes.logs.push_back(std::move(line));
    }
    waiting_logs_.clear();
  }
}

bool Cluster::HasWaitingBatch() const {
  return !waiting_logs_.empty() ||
         std::ranges::any_of(jobs_, [](const auto& entry) { return entry.second.acknowledge; });
}

Outbox Cluster::TakeOutbox() {
  if (!dirty_.empty() || !grown_.empty()) {
    for (const auto& [number, job] : jobs_) {
      const bool dirty = dirty_.contains(job.record.id);
      if (dirty) outbox_.changes.jobs.push_back(job.record);
      if (dirty || grown_.contains(job.record.id)) outbox_.published.push_back(job.record);
    }
    dirty_.clear();
    grown_.clear();
  }
  return std::exchange(outbox_, {});
}

}  // namespace takt::job
