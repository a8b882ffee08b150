// SPDX-License-Identifier: Apache-2.0
// This file has what workers tell a Job, and what follows from it for their ranks.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/log.h"
#include "coordinator/job/fault_record.h"
#include "coordinator/job/job.h"
#include "coordinator/job/saving.h"

namespace takt::job {
namespace {

using membership::Worker;
using store::JobState;

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

// Returns when the rank got further, as far as its new status tells: when it last completed an
// instruction, or, if it has done none yet, now if it loads or connects something else than before.
absl::Duration ProgressOf(const control::RankStatus& before, const control::RankStatus& after,
                          absl::Duration now) {
  if (!after.recent.empty())
    return now - absl::Seconds(std::max(0.0, after.recent.back().ended_seconds_ago));
  const auto place = [](const control::RankStatus& status) {
    return std::tie(status.last_step, status.instruction, status.instruction_step,
                    status.waiting_for);
  };
  return place(before) != place(after) ? now : -absl::InfiniteDuration();
}

}  // namespace

RankRun* Job::FindRank(Rank rank, const std::string& worker, const std::string& incarnation) {
  if (!run_ || rank < Rank(0) || rank.value() >= static_cast<int>(run_->ranks.size()))
    return nullptr;
  RankRun& found = run_->ranks[rank.value()];
  const bool bound = found.bound.worker == worker && found.bound.incarnation == incarnation;
  return bound && !found.lost ? &found : nullptr;
}

bool Job::HoldsRank(const Worker& worker, Rank rank) const {
  return const_cast<Job*>(this)->FindRank(rank, worker.hello.worker, worker.hello.incarnation) !=
         nullptr;
}

bool Job::TakeBack(const Worker& worker, Rank rank) {
  if (!run_ || rank < Rank(0) || rank.value() >= static_cast<int>(run_->ranks.size())) return false;
  RankRun& found = run_->ranks[rank.value()];
  const bool is_its_own = found.bound.worker == worker.hello.worker &&
                          found.bound.incarnation == worker.hello.incarnation;
  if (is_its_own && found.lost && IsTerminal(found.phase)) {
    found.lost.reset();
    record_.lost.erase(rank);
    changed_ = true;
  }
  return is_its_own && !found.lost;
}

// Tells the worker what was said to it while it had no stream. The worker repeats its own reports
// without being asked.
void Job::Reattach(const Worker& worker) {
  if (!run_ || !worker.hold || worker.hold->key != key()) return;
  const control::Hello& hello = worker.hello;
  RankRun* const rank = FindRank(worker.hold->rank, hello.worker, hello.incarnation);
  if (rank == nullptr) return;
  rank->away.reset();
  if (record_.stop) {
    context_.workers->Send(hello.worker, control::Abort{key(), record_.stop->reason});
  } else if (record_.halt) {
    context_.workers->Send(hello.worker, HaltOf(*record_.halt));
  }
}

void Job::Return(const Worker& worker) {
  RankRun* const rank = FindRank(worker.hold->rank, worker.hello.worker, worker.hello.incarnation);
  if (rank != nullptr) rank->away.reset();
}

std::vector<std::string> Job::Witnesses() const {
  std::vector<std::string> witnesses;
  const bool trains = run_ && record_.state == JobState::kRunning && !record_.stop;
  if (!trains) return witnesses;
  for (const RankRun& rank : run_->ranks) {
    if (rank.lost || rank.away || IsTerminal(rank.phase)) continue;
    witnesses.push_back(rank.bound.worker);
    if (witnesses.size() == 2) break;
  }
  return witnesses;
}

membership::Voucher Job::Vouch(const Worker& silent,
                               const std::vector<std::string>& witnesses) const {
  const auto is_other = [&](const std::string& worker) { return worker != silent.hello.worker; };
  if (std::ranges::none_of(witnesses, is_other)) return {};
  const double step_seconds =
      record_.last_step ? record_.last_step->step_seconds : record_.plan.predicted_step_seconds;
  return {.progress = run_->progress, .step = absl::Seconds(step_seconds)};
}

void Job::Heartbeat(const Worker& worker, const control::RankStatus& status, Moment now) {
  RankRun* const rank = FindRank(status.rank, worker.hello.worker, worker.hello.incarnation);
  if (rank == nullptr || IsTerminal(rank->phase)) return;
  control::RankStatus kept = ToKeep(status, rank->bound, now.wall);
  run_->progress = std::max(run_->progress, ProgressOf(rank->status, kept, now.steady));
  rank->status = std::move(kept);
}

void Job::Update(const Worker& worker, const control::JobUpdate& update, Moment now) {
  const std::string& name = worker.hello.worker;
  RankRun* const rank = FindRank(update.rank, name, worker.hello.incarnation);
  if (rank == nullptr || IsTerminal(rank->phase)) return;  // acknowledged when the job ends
  if (update.phase == control::Phase::kAdmitted) {
    if (rank->phase == RankPhase::kPreparing) {
      run_->progress = now.steady;
      rank->phase = RankPhase::kAdmitted;
      rank->resumed_step = update.resumed.step;
      rank->from_memory = update.resumed.from_memory;
      rank->kernel_plan = update.resumed.kernel_plan;
      for (const std::string& note : update.resumed.notes) AddNotice(note);
    }
    // The worker did not hear the start. It is told again, and what followed.
    if (record_.state == JobState::kRunning && !record_.stop) {
      rank->phase = RankPhase::kRunning;
      context_.workers->Send(name, control::Start{key()});
      if (record_.halt) context_.workers->Send(name, HaltOf(*record_.halt));
    }
    return;
  }
  rank->phase = PhaseAfter(update.phase);
  rank->error = update.failure.error;
  rank->cause = update.failure.cause;
  if (update.phase == control::Phase::kRefused) {
    rank->invalid_input =
        update.failure.invalid_input && update.failure.cause != control::Cause::kInputs;
    rank->violations = update.failure.violations;
    if (!run_->refused_since) run_->refused_since = now.steady;
  }
  rank->status = ToKeep(update.status, rank->bound, now.wall);
  run_->steps.EndRank(rank->bound.rank);
  run_->acknowledge = true;
}

void Job::Leave(const Worker& worker, const std::string& reason, Moment now) {
  RankRun* const rank = FindRank(worker.hold->rank, worker.hello.worker, worker.hello.incarnation);
  if (rank == nullptr || IsTerminal(rank->phase)) return;
  rank->leaves = true;
  const std::string why = absl::StrCat("worker ", worker.hello.worker, " leaves: ", reason);
  const bool has_trained = record_.state != JobState::kStarting || record_.last_step.has_value();
  if (spec_.checkpoint) {
    Requeue(why, now);
  } else if (!has_trained) {
    RequestHalt({.next = JobState::kQueued, .reason = why}, now);
  } else if (!record_.stop && run_->keeps_copies) {
    StopRun({.state = JobState::kRecovering, .reason = why}, now);
  } else if (!record_.stop) {
    StopRun({.state = JobState::kFailed, .reason = why + "; the job has no checkpoint"}, now);
  }
}

void Job::Lose(const membership::Loss& loss) {
  RankRun* const rank = FindRank(loss.hold->rank, loss.worker, loss.incarnation);
  if (rank == nullptr) return;
  // A run that ends does not wait for a worker to come back.
  if (!loss.away || record_.stop) {
    rank->away.reset();
    return LoseRank(*rank, loss.reason);
  }
  if (!IsTerminal(rank->phase)) rank->away = loss.reason;
}

void Job::LoseRank(RankRun& rank, const std::string& reason) {
  rank.lost = record_.lost[rank.bound.rank] = reason;
  changed_ = true;
  run_->steps.EndRank(rank.bound.rank);
}

void Job::Report(const std::string& worker, const std::string& incarnation,
                 const control::RankStepReport& report,
                 const std::shared_ptr<BulkSession>& session) {
  RankRun* const rank = FindRank(report.rank, worker, incarnation);
  if (rank == nullptr || !run_->steps.Add(report)) return;
  const double most = spec_.parallelism.expert;
  if (report.expert_imbalance >= 1 && report.expert_imbalance <= most) {
    constexpr double kNews = 0.02;  // of each report
    double& known = expert_imbalance_;
    known =
        known == 0 ? report.expert_imbalance : known + kNews * (report.expert_imbalance - known);
  }
  rank->status.last_step = std::max(rank->status.last_step, report.step);
  rank->bulk = session;
  run_->acknowledge = true;
}

void Job::ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                           const control::CheckpointReport& report,
                           const std::shared_ptr<BulkSession>& session) {
  RankRun* const rank = FindRank(report.rank, worker, incarnation);
  if (rank == nullptr || !run_->steps.AddOther(report.rank, report.sequence, report.step)) return;
  if (AddReport(record_.saving, report)) changed_ = true;
  rank->bulk = session;
  run_->acknowledge = true;
}

void Job::AddLog(const control::LogLine& line) {
  if (!past_workers_.contains(line.worker)) return;
  waiting_logs_.push_back({.job_id = record_.id,
                           .worker = line.worker,
                           .rank = line.rank,
                           .step = line.step,
                           .level = Name(line.level),
                           .text = std::string(FirstBytes(line.text, kMaxLogTextBytes)),
                           .unix_nanos = line.unix_nanos});
}

}  // namespace takt::job
