// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace takt::job {

using membership::Loss;
using membership::Worker;

namespace {

constexpr char kGenerationIsOver[] = "this generation of the job is over";

}  // namespace

Cluster::Cluster(const ClusterOptions& options, store::Snapshot snapshot, store::Store* store,
                 Moment now)
    : options_(options),
      requests_(store),
      workers_(options_.membership, snapshot.drained, options_.heartbeat, &outbox_,
               std::move(snapshot.workers)),
      context_{.decide = options_.decide,
               .replan = options_.replan,
               .commit_timeout = options_.commit_timeout,
               .return_grace = options_.membership.return_grace,
               .random_bytes = options_.random_bytes,
               .read_profile = options_.read_profile,
               .saving_jobs = [this] { return jobs_.SavingJobs(); },
               .workers = &workers_,
               .outbox = &outbox_},
      jobs_(&context_, std::move(snapshot), now) {}

void Cluster::Attach(const control::Hello& hello, SessionId id,
                     std::shared_ptr<WorkerSession> session, Moment now) {
  const absl::StatusOr<std::optional<Loss>> loss =
      workers_.Attach(hello, id, std::move(session), now);
  if (!loss.ok()) return;
  if (*loss) HandleLoss(**loss);
  const Worker& worker = *workers_.members().Find(hello.worker);
  for (auto& [number, job] : jobs_) job.Reattach(worker);
  if (!hello.running) return;
  const auto& [key, rank, last_step] = *hello.running;
  Job* const job = jobs_.FindRunning(key);
  if (job != nullptr && job->HoldsRank(worker, rank)) return;
  // The worker is held until it has let go, so that nothing else is given to it.
  workers_.Bind(hello.worker, key, rank);
  workers_.Send(hello.worker, control::Abort{key, kGenerationIsOver});
}

void Cluster::Heartbeat(SessionId id, const control::Heartbeat& heartbeat, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr || !heartbeat.status) return;
  if (Job* const job = jobs_.FindRunning(heartbeat.key))
    job->Heartbeat(*worker, *heartbeat.status, now);
}

void Cluster::Update(SessionId id, const control::JobUpdate& update, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr) return;
  Job* const job = jobs_.FindRunning(update.key);
  if (job != nullptr && job->HoldsRank(*worker, update.rank))
    return job->Update(*worker, update, now);
  const std::string name = worker->hello.worker;
  if (update.phase == control::Phase::kAdmitted)
    return workers_.Send(name, control::Abort{update.key, kGenerationIsOver});
  const Job* const later = jobs_.Find(update.key.job);
  const bool goes_on = later != nullptr && !store::HasEnded(later->record().state);
  workers_.Send(name, control::Acknowledge{update.key, /*keeps_copies=*/goes_on});
  if (worker->hold && worker->hold->key == update.key) workers_.Release(name);
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
  if (job != nullptr) job->Leave(*worker, reason, now);
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
  if (Job* const job = jobs_.FindRunning(report.key))
    job->ReportCheckpoint(worker, incarnation, report, session);
}

void Cluster::Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now) {
  Heard(id, now);
  if (Job* const job = jobs_.FindRunning(answer.key)) job->Committed(id, answer, now);
}

void Cluster::AddLog(const control::LogLine& line) {
  if (Job* const job = jobs_.Find(line.job)) job->AddLog(line);
}

void Cluster::HandleLoss(const Loss& loss) {
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

membership::Voucher Cluster::Vouch(const Worker& worker) {
  Job* const job = worker.hold ? jobs_.FindRunning(worker.hold->key) : nullptr;
  return job != nullptr ? job->Vouch(worker) : membership::Voucher();
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
  const auto vouch = [this](const Worker& worker) { return Vouch(worker); };
  for (const Loss& loss : workers_.Expire(now, vouch)) HandleLoss(loss);
  const bool batch = now.steady - last_batch_ >= options_.batch_interval;
  if (batch && HasWaitingBatch()) last_batch_ = now.steady;
  for (auto& [number, job] : jobs_) job.Tick(batch, now);
  ServeQueue(now);
}

bool Cluster::HasWaitingBatch() const {
  return std::ranges::any_of(jobs_,
                             [](const auto& entry) { return entry.second.HasWaitingBatch(); });
}

Outbox Cluster::TakeOutbox() {
  for (auto& [number, job] : jobs_) job.Flush();
  outbox_.changes.requests = requests_.Take();
  return std::exchange(outbox_, {});
}

}  // namespace takt::job
