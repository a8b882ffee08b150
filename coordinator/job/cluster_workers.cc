// SPDX-License-Identifier: Apache-2.0
// Cluster: what workers say, and what follows from it for their ranks.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/fault_record.h"

namespace takt::job {
namespace {

// With StoreLimits::log_lines this bounds what the lines of a job take.
constexpr std::size_t kMaxLogTextBytes = 2048;

RankPhase PhaseAfter(control::Phase phase) {
  switch (phase) {
    case control::Phase::kAdmitted:
      return RankPhase::kAdmitted;
    case control::Phase::kRefused:
      return RankPhase::kRefused;
    case control::Phase::kFinished:
      return RankPhase::kFinished;
    case control::Phase::kFailed:
      return RankPhase::kFailed;
    case control::Phase::kAborted:
      return RankPhase::kAborted;
    case control::Phase::kHalted:
      return RankPhase::kHalted;
  }
  return RankPhase::kFailed;
}

}  // namespace

using control::Hello;
using membership::Loss;
using membership::Worker;

void Cluster::Attach(const control::Hello& hello, SessionId id,
                     std::shared_ptr<WorkerSession> session, Moment now) {
  const absl::StatusOr<membership::Membership::Attached> attached = members_.Attach(hello, id, now);
  if (!attached.ok()) {
    Log(LogLevel::kWarning, "worker refused",
        {{"worker", hello.worker},
         {"incarnation", hello.incarnation},
         {"reason", attached.status().ToString()}});
    outbox_.effects.push_back(
        [session = std::move(session), status = attached.status()] { session->Close(status); });
    return;
  }
  if (attached->replaced) HandleLoss(*attached->replaced, now);
  sessions_[id] = std::move(session);
  SendTo(hello.worker, control::Welcome{.protocol_version = options_.membership.protocol_version,
                                        .program_version = kTaktVersion,
                                        .heartbeat = options_.heartbeat,
                                        .lease = options_.membership.lease});
  Log(LogLevel::kInfo, "worker attached",
      {{"worker", hello.worker},
       {"incarnation", hello.incarnation},
       {"host", hello.host},
       {"running", hello.running ? hello.running->key.job : ""}});
  Reattach(hello);
}

// Ranks that a restart of the coordinator or of the connection left open, and work that nobody
// knows of.
void Cluster::Reattach(const control::Hello& hello) {
  std::optional<membership::Hold> running;
  if (hello.running) running = {hello.running->key, hello.running->rank};
  for (auto& [number, job] : jobs_) {
    if (!job.run) continue;
    const control::JobKey key{job.record.name, job.record.generation};
    for (RankRun& rank : job.run->ranks) {
      if (rank.bound.worker != hello.worker || rank.phase != RankPhase::kAway || rank.lost)
        continue;
      if (rank.bound.incarnation != hello.incarnation) {
        rank.lost = "it came back as a new process";
        continue;
      }
      // Without a word of the job in its hello, its end may still come as an update; otherwise
      // return_grace ends the wait.
      const membership::Hold hold{key, rank.bound.rank};
      members_.SetHold(hello.worker, hold);
      if (running == hold) rank.phase = RankPhase::kRunning;
      if (job.run->stop) {
        SendTo(hello.worker, control::Abort{key, job.run->stop->reason});
      } else if (job.run->halt) {
        SendTo(hello.worker, control::Halt{key, job.run->halt->reason});
      }
    }
  }
  if (!running) return;
  if (FindRank(running->key, running->rank, *members_.Find(hello.worker)) != nullptr) return;
  // Held until it has let go, so that nothing else is given to it.
  members_.SetHold(hello.worker, *running);
  SendTo(hello.worker, control::Abort{running->key, "this generation of the job is over"});
}

// The rank of a live run that `worker` holds; null for anything stale.
RankRun* Cluster::FindRank(const control::JobKey& key, Rank rank, const Worker& worker) {
  JobEntry* const job = FindRunning(key);
  if (job == nullptr || rank < Rank(0) || rank.value() >= static_cast<int>(job->run->ranks.size()))
    return nullptr;
  RankRun& found = job->run->ranks[rank.value()];
  const bool bound = found.bound.worker == worker.hello.worker &&
                     found.bound.incarnation == worker.hello.incarnation;
  return bound && !found.lost ? &found : nullptr;
}

void Cluster::Heartbeat(SessionId id, const control::Heartbeat& heartbeat, Moment now) {
  members_.Heard(id, now);
  const Worker* const worker = members_.FindSession(id);
  if (worker == nullptr || !heartbeat.status) return;
  RankRun* const rank = FindRank(heartbeat.key, heartbeat.status->rank, *worker);
  if (rank == nullptr || IsTerminal(rank->phase)) return;
  rank->status = ToKeep(*heartbeat.status, rank->bound, now.wall);
}

void Cluster::Update(SessionId id, const control::JobUpdate& update, Moment now) {
  members_.Heard(id, now);
  const Worker* const worker = members_.FindSession(id);
  if (worker == nullptr) return;
  const std::string name = worker->hello.worker;
  RankRun* const rank = FindRank(update.key, update.rank, *worker);
  if (rank == nullptr) {
    if (update.phase == control::Phase::kAdmitted) {
      SendTo(name, control::Abort{update.key, "this generation of the job is over"});
      return;
    }
    SendTo(name, control::Acknowledge{update.key});
    if (worker->hold && worker->hold->key == update.key) members_.Release(name);
    return;
  }
  if (IsTerminal(rank->phase)) return;  // told again: acknowledged when the job ends
  JobEntry& job = *FindRunning(update.key);
  if (update.phase == control::Phase::kAdmitted) {
    if (rank->phase == RankPhase::kPreparing) {
      rank->phase = RankPhase::kAdmitted;
      rank->resumed_step = update.resumed.step;
      rank->kernel_plan = update.resumed.kernel_plan;
      for (const std::string& note : update.resumed.notes) AddNotice(job, note);
    }
    // It did not hear the start: say it again, and what followed.
    if (job.run->state == store::JobState::kRunning && !job.run->stop) {
      rank->phase = RankPhase::kRunning;
      SendTo(name, control::Start{update.key});
      if (job.run->halt) SendTo(name, control::Halt{update.key, job.run->halt->reason});
    }
    return;
  }
  rank->phase = PhaseAfter(update.phase);
  rank->error = update.failure.error;
  rank->invalid_input = update.phase == control::Phase::kRefused && update.failure.invalid_input;
  if (rank->invalid_input) rank->violations = update.failure.violations;
  rank->status = ToKeep(update.status, rank->bound, now.wall);
  job.steps->EndRank(rank->bound.rank);
  job.acknowledge = true;
}

void Cluster::Detach(SessionId id, const std::string& reason, Moment now) {
  const std::optional<Loss> loss = members_.Detach(id, reason);
  if (!loss) return;
  outbox_.workers_lost += members_.Find(loss->worker)->leaving ? 0 : 1;
  HandleLoss(*loss, now);
}

void Cluster::ResumeAfterStall(absl::Duration stall, Moment now) {
  Log(LogLevel::kWarning, "the coordinator did nothing for a while; leases begin anew",
      {{"seconds", absl::StrCat(absl::ToInt64Seconds(stall))}});
  members_.RenewLeases(now);
  // A shorter one ends no stream.
  if (stall >= options_.membership.lease)
    streams_return_until_ = now.steady + options_.decide.return_grace;
}

void Cluster::HandleLoss(const Loss& loss, Moment now) {
  Log(LogLevel::kWarning, "worker lost",
      {{"worker", loss.worker},
       {"incarnation", loss.incarnation},
       {"reason", loss.reason},
       {"job", loss.hold ? loss.hold->key.job : ""}});
  if (const auto session = sessions_.find(loss.session); session != sessions_.end()) {
    outbox_.effects.push_back([session = session->second, reason = loss.reason] {
      session->Close(
          absl::UnavailableError(absl::StrCat("the coordinator gave this stream up: ", reason)));
    });
    sessions_.erase(session);
  }
  if (!loss.hold) return;
  JobEntry* const job = FindJob(loss.hold->key.job);
  if (job == nullptr || job->record.generation != loss.hold->key.generation) return;
  std::erase(job->reserved, loss.worker);
  if (!job->run) return;
  for (RankRun& rank : job->run->ranks) {
    if (rank.bound.worker != loss.worker || rank.bound.incarnation != loss.incarnation || rank.lost)
      continue;
    const bool runs =
        job->run->state == store::JobState::kRunning && !job->run->stop && !IsTerminal(rank.phase);
    if (runs && now.steady < streams_return_until_) {
      rank.phase = RankPhase::kAway;
      job->run->since = now.steady;
      continue;
    }
    rank.lost = loss.reason;
    job->steps->EndRank(rank.bound.rank);
  }
}

absl::Status Cluster::CheckAttached(const std::string& worker,
                                    const std::string& incarnation) const {
  const Worker* const found = members_.Find(worker);
  if (found != nullptr && found->session != SessionId(0) &&
      found->hello.incarnation == incarnation) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker, " incarnation ", incarnation,
                   " is not attached; open the control stream first"));
}

void Cluster::Report(const std::string& worker, const std::string& incarnation,
                     const control::RankStepReport& report,
                     const std::shared_ptr<BulkSession>& session) {
  const Worker* const found = members_.Find(worker);
  const bool current = found != nullptr && found->hello.incarnation == incarnation;
  RankRun* const rank = current ? FindRank(report.key, report.rank, *found) : nullptr;
  if (rank == nullptr) return;  // stale: refused
  JobEntry& job = *FindRunning(report.key);
  if (!job.steps->Add(report)) return;
  rank->status.last_step = std::max(rank->status.last_step, report.step);
  job.bulk[report.rank] = session;
  job.acknowledge = true;
}

void Cluster::AddLog(const control::LogLine& line) {
  const JobEntry* const job = FindJob(line.job);
  if (job == nullptr || !job->hands.contains(line.worker)) return;
  waiting_logs_.push_back({.job_id = job->record.id,
                           .worker = line.worker,
                           .rank = line.rank,
                           .step = line.step,
                           .level = Name(line.level),
                           .text = std::string(FirstBytes(line.text, kMaxLogTextBytes)),
                           .unix_nanos = line.unix_nanos});
}

}  // namespace takt::job
