// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "coordinator/job/received_text.h"
#include "coordinator/timeouts/admission.h"

namespace takt::job {

using membership::Loss;
using membership::Worker;

namespace {

// Workers that come back all at once are admitted one after the other. Those that hold ranks get
// the time for that.
ClusterOptions WithTimeToReturn(ClusterOptions options, const store::Snapshot& snapshot) {
  std::size_t ranks = 0;
  for (const store::JobRecord& job : snapshot.jobs) ranks += job.ranks.size();
  options.membership.return_grace += timeouts::ReturnTime(static_cast<int>(ranks));
  return options;
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options, store::Snapshot snapshot, store::Store* store,
                 Moment now)
    : options_(WithTimeToReturn(options, snapshot)),
      requests_(store),
      workers_(options_.membership, snapshot.drained, options_.heartbeat, &outbox_,
               std::move(snapshot.workers), snapshot.cluster_id, now),
      cluster_id_(snapshot.cluster_id),
      context_{.decide = options_.decide,
               .replan = options_.replan,
               .commit_timeout = options_.commit_timeout,
               .return_grace = options_.membership.return_grace,
               .random_bytes = options_.random_bytes,
               .read_profile = options_.read_profile,
               .saving_jobs =
                   [this] {
                     std::vector<std::string> ids = jobs_.SavingJobs();
                     for (std::string& id : held_.SavingJobs()) ids.push_back(std::move(id));
                     return ids;
                   },
               .epoch = snapshot.epoch,
               .wait_clock = WaitClock(now),
               .workers = &workers_,
               .outbox = &outbox_},
      jobs_(&context_, std::move(snapshot), now),
      started_(now.steady) {
  for (const auto& [name, worker] : workers_.workers()) {
    if (worker.away) expected_.insert(name);
  }
  for (const auto& [number, job] : jobs_.live()) {
    if (job->HasOnlyCopies(now)) expected_.merge(job->CopyHolders());
  }
  // The coordinator before may have died before its workers heard that their jobs were adopted.
  for (const auto& [number, job] : jobs_.live()) {
    if (!job->record().adoption) continue;
    for (const control::BoundRank& bound : job->record().ranks)
      adopted_[bound.worker] = {job->key(), job->record().adoption->cluster_id};
  }
}

void Cluster::Attach(const control::Hello& hello, SessionId id,
                     std::shared_ptr<WorkerSession> session, Moment now) {
  control::Hello known = hello;
  const Worker* const before = workers_.members().Find(hello.worker);
  // A job of this coordinator has lost the rank if another coordinator has adopted it.
  const bool taken = IsForeign(hello) && before != nullptr && before->hold &&
                     jobs_.FindRunning(before->hold->key) != nullptr;
  if (taken) known.running.reset();
  const absl::StatusOr<std::optional<Loss>> loss =
      workers_.Attach(known, id, std::move(session), now);
  if (!loss.ok()) return;
  looked_at_ = -absl::InfiniteDuration();  // fewer workers are silent now
  // It obeys what follows only once it has read this.
  if (MissedAdoption(hello)) {
    workers_.Send(hello.worker, control::Adopt{hello.running->key});
  } else {
    adopted_.erase(hello.worker);
  }
  if (*loss) HandleLoss(**loss);
  const Worker& worker = *workers_.members().Find(hello.worker);
  const bool is_ours = hello.running.has_value() && !IsForeign(hello);
  Job* const job = is_ours ? jobs_.FindRunning(hello.running->key) : nullptr;
  const bool holds = job != nullptr && job->TakeBack(worker, hello.running->rank);
  // It was lost after its rank had ended, and the run has not ended yet.
  if (holds && !worker.hold) workers_.Bind(hello.worker, job->key(), hello.running->rank);
  Job* const held_by = worker.hold ? jobs_.FindRunning(worker.hold->key) : nullptr;
  if (held_by != nullptr) held_by->Reattach(worker);
  if (!hello.running || holds) return;
  HoldOrAbort(hello, now);
}

void Cluster::Heartbeat(SessionId id, const control::Heartbeat& heartbeat, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr || !heartbeat.status) return;
  if (held_.Holds(worker->hello.worker))
    return held_.SetStatus(worker->hello.worker, *heartbeat.status, now);
  if (Job* const job = jobs_.FindRunning(heartbeat.key))
    job->Heartbeat(*worker, *heartbeat.status, now);
}

void Cluster::Update(SessionId id, const control::JobUpdate& update, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr) return;
  if (held_.Knows(update.key) && held_.Holds(worker->hello.worker))
    return held_.SetEnd(worker->hello.worker, update);
  Job* const job = jobs_.FindRunning(update.key);
  if (job != nullptr && job->HoldsRank(*worker, update.rank))
    return job->Update(*worker, Bounded(update), now);
  const std::string name = worker->hello.worker;
  if (update.phase == control::Phase::kAdmitted)
    return workers_.Send(name, control::Abort{update.key, kGenerationIsOver});
  const Job* const later = jobs_.Find(update.key.job);
  const bool goes_on = later != nullptr && !store::HasEnded(later->record().state);
  workers_.Send(name, control::Acknowledge{update.key, /*keeps_copies=*/goes_on});
  workers_.Release(name, update.key);
}

void Cluster::Detach(SessionId id, const std::string& reason, Moment now) {
  if (const std::optional<Loss> loss = workers_.Detach(id, reason, now)) HandleLoss(*loss);
}

void Cluster::Leave(SessionId id, const std::string& reason, Moment now) {
  Heard(id, now);
  workers_.members().SetLeaving(id);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr) return;
  Log(LogLevel::kInfo, "worker leaves",
      {{"worker", worker->hello.worker},
       {"reason", reason},
       {"job", worker->hold ? worker->hold->key.job : ""}});
  Job* const job = worker->hold ? jobs_.FindRunning(worker->hold->key) : nullptr;
  if (job != nullptr) job->Leave(*worker, Bounded(reason), now);
}

absl::Status Cluster::CheckAttached(const std::string& worker,
                                    const std::string& incarnation) const {
  if (workers_.FindAttached(worker, incarnation) != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker, " incarnation ", incarnation,
                   " is not attached; open the control stream first"));
}

void Cluster::Report(const std::string& worker, const std::string& incarnation,
                     const control::RankStepReport& report,
                     const std::shared_ptr<BulkSession>& session) {
  if (Job* const job = jobs_.FindRunning(report.key))
    job->Report(worker, incarnation, report, session);
}

void Cluster::ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                               const control::CheckpointReport& report,
                               const std::shared_ptr<BulkSession>& session) {
  Job* const job = jobs_.FindRunning(report.key);
  if (job == nullptr) return;
  control::CheckpointReport bounded = report;
  bounded.error = Bounded(report.error);
  job->ReportCheckpoint(worker, incarnation, bounded, session);
}

void Cluster::Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now) {
  Heard(id, now);
  Job* const job = jobs_.FindRunning(answer.key);
  if (job == nullptr) return;
  job->Committed(id, {.key = answer.key, .step = answer.step, .error = Bounded(answer.error)}, now);
}

void Cluster::AddLog(const control::LogLine& line) {
  if (Job* const job = jobs_.Find(line.job)) job->AddLog(line);
}

void Cluster::HandleLoss(const Loss& loss) {
  if (!loss.away) held_.Forget(loss.worker);
  Job* const job = loss.hold ? jobs_.FindRunning(loss.hold->key) : nullptr;
  if (job != nullptr) job->Lose(loss);
}

void Cluster::Heard(SessionId id, Moment now) {
  if (!workers_.members().Heard(id, now)) return;
  const Worker& worker = *workers_.members().FindSession(id);
  Log(LogLevel::kInfo, "worker is heard again", {{"worker", worker.hello.worker}});
  Job* const job = worker.hold ? jobs_.FindRunning(worker.hold->key) : nullptr;
  if (job != nullptr) job->Return(worker);
}

void Cluster::ExpireWorkers(Moment now) {
  // No rank changes while the table is searched, so each job looks for its witnesses once.
  std::map<const Job*, std::vector<std::string>> witnesses;
  const auto vouch = [&](const Worker& worker) -> membership::Voucher {
    const Job* const job = worker.hold ? jobs_.FindRunning(worker.hold->key) : nullptr;
    if (job == nullptr) return {};
    const auto [of_job, is_new] = witnesses.try_emplace(job);
    if (is_new) of_job->second = job->Witnesses();
    return job->Vouch(worker, of_job->second);
  };
  for (const Loss& loss : workers_.Expire(now, vouch)) HandleLoss(loss);
}

void Cluster::ResumeAfterStall(absl::Duration stall, Moment now) {
  Log(LogLevel::kWarning, "the coordinator did nothing for a while; leases begin anew",
      {{"seconds", absl::StrCat(absl::ToInt64Seconds(stall))}});
  // A stall that is shorter than a lease ends no stream.
  const bool ends_streams = stall >= options_.membership.lease;
  workers_.members().RenewLeases(
      now, ends_streams ? options_.membership.return_grace : absl::ZeroDuration());
}

void Cluster::Planned(const std::string& job_id, Generation generation,
                      absl::StatusOr<plan::Plan> plan, Moment now) {
  Job* const job = jobs_.FindById(job_id);
  if (job == nullptr || job->record().generation != generation) return;  // no longer wanted
  job->Planned(std::move(plan), now);
}

void Cluster::Replanned(const std::string& job_id, Generation generation,
                        absl::StatusOr<ReplanOffer> offer, Moment now) {
  Job* const job = jobs_.FindById(job_id);
  if (job == nullptr || job->record().generation != generation) return;  // no longer wanted
  job->Replanned(std::move(offer), now);
}

void Cluster::Tick(Moment now) {
  const bool look = now.steady - looked_at_ >= timeouts::kTick;
  if (look) {
    looked_at_ = now.steady;
    ExpireWorkers(now);
  }
  const bool batch = now.steady - last_batch_ >= options_.batch_interval;
  if (batch && HasWaitingBatch()) last_batch_ = now.steady;
  for (const auto& [number, job] : jobs_.live()) {
    const bool news = job->TakeNews();
    if (look || news || (batch && job->HasWaitingBatch())) job->Tick(batch, now);
  }
  TickHeld(now);
  ServeQueue(now);
  ForgetEndedJobs(now);
}

void Cluster::ForgetEndedJobs(Moment now) {
  if (now.steady - forgot_at_ < timeouts::kForgetJobs) return;
  forgot_at_ = now.steady;
  const RetentionOptions& retention = options_.retention;
  for (const std::string& name :
       JobsToForget(jobs_.FirstEnded(retention.at_once), jobs_.num_ended(), retention, now.wall)) {
    Log(LogLevel::kInfo, "an ended job is forgotten (--keep-ended-jobs, --keep-ended-days)",
        {{"job", name}});
    Job* const job = jobs_.Find(name);
    job->FlushDeleted();
    jobs_.Remove(*job);
  }
}

bool Cluster::HasWaitingBatch() const {
  return std::ranges::any_of(jobs_.live(),
                             [](const auto& entry) { return entry.second->HasWaitingBatch(); });
}

Outbox Cluster::TakeOutbox() {
  for (const auto& [number, job] : jobs_.live()) job->Flush();
  jobs_.Settle();
  outbox_.changes.requests = requests_.Take();
  return std::exchange(outbox_, {});
}

}  // namespace takt::job
