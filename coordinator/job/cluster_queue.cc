// SPDX-License-Identifier: Apache-2.0
// This file has what a Cluster tells the queue, and what follows from its answers.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "coordinator/job/blame.h"
#include "coordinator/job/cluster.h"

namespace takt::job {
namespace {

using store::JobRecord;
using store::JobState;

// A job whose ranks were told to end gives its workers back about so soon.
constexpr double kStoppingSeconds = 30;

// A job that can do without a worker does so once it blames it this often (placement/queue.h).
constexpr int kShunned = 2;

constexpr char kHeldElsewhere[] =
    "workers hold it in a generation that this state does not know; see takt adopt and takt "
    "abandon";

constexpr char kAwaitsHolders[] =
    "the only state of the job is in the memory of workers that may come back in a moment";

// Returns how long the job still trains, nullopt if that is not known. A job that takes as many
// workers as there are is not predicted, because the time depends on their number.
std::optional<double> SecondsToTrain(const Job& job, const placement::Need& need) {
  const double seconds = store::EtaSeconds(job.record());
  if (seconds <= 0 || need.up_to_all) return std::nullopt;
  return seconds;
}

// True if the job comes back to the queue when its ranks have ended.
bool WillQueue(const Job& job) {
  const JobRecord& record = job.record();
  if (store::HasEnded(record.state) || job.keeps_workers()) return false;
  if (record.halt) return record.halt->next == JobState::kQueued;
  return record.state == JobState::kRecovering;
}

// True if the job waits because of a fault, and has not trained since.
bool Recovers(const JobRecord& job) {
  for (auto it = job.transitions.rbegin(); it != job.transitions.rend(); ++it) {
    if (it->state == JobState::kRecovering) return true;
    if (it->state == JobState::kRunning || it->state == JobState::kPaused) return false;
  }
  return false;
}

// Returns until when a job waits after its faults before it begins again, nullopt if it does not.
// now, return: on the clock that gives faults their times (JobContext).
std::optional<absl::Time> WaitsUntil(const JobRecord& job, const DecideOptions& options,
                                     absl::Time now) {
  if (job.state != JobState::kQueued || job.faults.empty() || !Recovers(job)) return std::nullopt;
  const absl::Time until = job.faults.back().time + BackoffAfter(job.faults.size(), options);
  return until > now ? std::optional(until) : std::nullopt;
}

std::string WhyItWaits(const JobRecord& job, absl::Time until) {
  return absl::StrCat("begins again at ", absl::FormatTime("%H:%M:%S", until, absl::UTCTimeZone()),
                      " UTC, after ", Counted(std::ssize(job.faults), "fault"),
                      " without a new step");
}

std::string WhyItIsNotPlanned(absl::Time until) {
  return absl::StrCat(
      "the coordinator ended while it made the plan of this job, and makes it again "
      "at ",
      absl::FormatTime("%H:%M:%S", until, absl::UTCTimeZone()), " UTC");
}

placement::Need NextNeedOf(const Job& job) {
  if (!job.spec().elastic.Resizes()) return placement::NeedOf(job.spec(), job.Device());
  return placement::NeedOf(job.NextSpec(), job.Device());
}

placement::WaitingJob WaitingJobOf(const Job& job, Moment now) {
  const JobRecord& record = job.record();
  const placement::Need need = NextNeedOf(job);
  return {.name = record.name,
          .need = need,
          .recovers = Recovers(record),
          .stopping = record.state != JobState::kQueued,
          .priority = job.spec().priority,
          .number = record.number,
          .seconds = SecondsToTrain(job, need),
          .owner = record.owner,
          .preferred = job.CopyHolders(),
          .keeps_preferred = job.HasOnlyCopies(now)};
}

// Returns what a job that trains could use besides its workers.
placement::WaitingJob GrowingJobOf(const Job& job) {
  const JobRecord& record = job.record();
  placement::Need need = NextNeedOf(job);
  need.workers = 1;
  need.up_to_all = true;
  need.most = job.Growth();
  return {.name = record.name,
          .need = need,
          .grows = true,
          .priority = job.spec().priority,
          .number = record.number,
          .owner = record.owner};
}

// Returns when the workers of a job that is planned, starts or trains are idle again.
std::optional<double> EndsIn(const Job& job) {
  const JobRecord& record = job.record();
  const bool done = record.last_step && record.last_step->step.value() >= record.steps;
  const bool halting = record.halt && !job.keeps_workers();
  if (halting || record.stop || done) return kStoppingSeconds;
  const double seconds = store::EtaSeconds(record);
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

// True if the job can be told to end at a step boundary. A job that has just begun is left alone
// until it has done a step, so that it makes progress however often it is paused.
bool CanPause(const Job& job) {
  const JobRecord& record = job.record();
  return job.spec().checkpoint && record.state == JobState::kRunning && !record.halt &&
         !record.stop && record.last_step && record.last_step->step > record.resumed_step;
}

absl::Time BeginOf(const JobRecord& job) {
  const auto begin =
      std::find_if(job.transitions.rbegin(), job.transitions.rend(),
                   [](const auto& each) { return each.state == JobState::kPlanning; });
  return begin == job.transitions.rend() ? job.create_time : begin->time;
}

// A job does not grow by workers that it blames twice.
std::vector<std::string> WithoutShunned(std::vector<std::string> workers,
                                        const std::map<std::string, int>& blamed) {
  std::erase_if(workers, [&](const std::string& worker) {
    const auto found = blamed.find(worker);
    return found != blamed.end() && found->second >= kShunned;
  });
  return workers;
}

}  // namespace

placement::Capacity Cluster::CapacityForQueue(Moment now) const {
  placement::Capacity capacity = placement::CapacityOf(workers());
  capacity.quotas = options_.quotas;
  for (placement::Holder& holder : capacity.held) {
    const Job* const job = jobs_.Find(holder.name);
    // What is left of a generation that is over lets go soon.
    holder.ends_in = kStoppingSeconds;
    if (job == nullptr) {
      // Nobody knows when a held job ends.
      if (held_.Find(holder.name) != nullptr) holder.ends_in.reset();
      continue;
    }
    holder.owner = job->record().owner;
    holder.priority = job->spec().priority;
    if (job->record().generation != holder.generation || store::HasEnded(job->record().state))
      continue;
    holder.ends_in = EndsIn(*job);
    holder.can_pause = CanPause(*job);
    holder.halting = job->record().halt.has_value() && !job->keeps_workers();
    holder.held_seconds = absl::ToDoubleSeconds(now.wall - BeginOf(job->record()));
  }
  return capacity;
}

void Cluster::ServeQueue(Moment now) {
  std::vector<placement::WaitingJob> waiting;
  std::vector<Job*> jobs;
  bool any_queued = false;
  const std::string why_not = WhyNothingBegins(now);
  for (const auto& [number, job] : jobs_.live()) {
    const bool queued = job->record().state == JobState::kQueued;
    if (!queued && !WillQueue(*job)) continue;
    any_queued |= queued;
    if (!why_not.empty()) {
      if (queued) job->SetReason(why_not);
      continue;
    }
    waiting.push_back(WaitingJobOf(*job, now));
    jobs.push_back(job);
    if (held_.Find(job->record().name) != nullptr) {
      waiting.back().stopping = true;
      if (queued) job->SetReason(kHeldElsewhere);
      continue;
    }
    if (AwaitsHolders(*job, now)) {
      waiting.back().stopping = true;
      if (queued) job->SetReason(kAwaitsHolders);
      continue;
    }
    if (job->plans_again().steady > now.steady) {
      waiting.back().stopping = true;
      job->SetReason(WhyItIsNotPlanned(job->plans_again().wall));
      continue;
    }
    if (!job->record().faults.empty() || !job->evicted_workers().empty())
      waiting.back().blamed = BlamedBy(*job, now);
    if (job->record().faults.empty()) continue;
    const WaitClock& clock = context_.wait_clock;
    if (const auto until = WaitsUntil(job->record(), options_.decide, clock.Of(now))) {
      waiting.back().stopping = true;
      job->SetReason(WhyItWaits(job->record(), clock.Shown(*until, now)));
    }
  }
  const bool any_grows = why_not.empty() && AddGrowing(waiting, jobs, now);
  if ((!any_queued && !any_grows) || !why_not.empty()) {
    asked_at_ = -absl::InfiniteDuration();
    return;
  }
  const placement::Capacity capacity = CapacityForQueue(now);
  if (!AsksAnew(waiting, capacity, now)) return;
  const std::vector<placement::Grant> grants = placement::GrantGangs(waiting, capacity);
  for (std::size_t i = 0; i < grants.size(); ++i) {
    if (waiting[i].grows) {
      jobs[i]->SetSpare(WithoutShunned(grants[i].workers, waiting[i].blamed), now);
      continue;
    }
    for (const std::string& victim : grants[i].preempts) {
      jobs_.Find(victim)->Requeue(absl::StrCat("paused for job ", waiting[i].name,
                                               ", whose priority is ", waiting[i].priority),
                                  now);
    }
    if (waiting[i].stopping) continue;
    if (grants[i].workers.empty()) {
      jobs[i]->SetReason(grants[i].reason);
    } else {
      jobs[i]->BeginPlanning(grants[i].workers, now);
      asked_at_ = -absl::InfiniteDuration();
    }
  }
}

bool Cluster::AwaitsHolders(const Job& job, Moment now) const {
  if (!job.HasOnlyCopies(now)) return false;
  return std::ranges::any_of(job.CopyHolders(), [&](const std::string& name) {
    const membership::Worker* const worker = workers_.members().Find(name);
    if (worker == nullptr) return false;
    const bool lets_go = worker->hold && worker->hold->key.job == job.record().name;
    return lets_go || worker->state() == membership::WorkerState::kAway;
  });
}

std::map<std::string, int> Cluster::BlamedBy(const Job& job, Moment now) const {
  std::map<std::string, int> blamed =
      workers_.quarantine().BlamedBy(job.record().name, context_.wait_clock.Of(now));
  for (const std::string& worker : job.evicted_workers())
    blamed[worker] = std::max(blamed[worker], kShunned);
  return blamed;
}

bool Cluster::AddGrowing(std::vector<placement::WaitingJob>& waiting, std::vector<Job*>& jobs,
                         Moment now) {
  std::vector<Job*> growing;
  for (const auto& [number, job] : jobs_.live()) {
    if (job->Growth() > 0) growing.push_back(job);
  }
  const auto takes_work = [](const auto& entry) { return entry.second.TakesWork(); };
  const bool any_idle = !growing.empty() && std::ranges::any_of(workers(), takes_work);
  for (Job* const job : growing) {
    if (!any_idle) {
      job->SetSpare({}, now);
      continue;
    }
    waiting.push_back(GrowingJobOf(*job));
    waiting.back().blamed = BlamedBy(*job, now);
    jobs.push_back(job);
  }
  return any_idle;
}

bool Cluster::AsksAnew(std::vector<placement::WaitingJob> waiting, placement::Capacity capacity,
                       Moment now) {
  for (placement::WaitingJob& job : waiting) job.seconds.reset();
  for (placement::Holder& holder : capacity.held) {
    holder.ends_in.reset();
    holder.held_seconds = 0;
  }
  const bool same = waiting == asked_waiting_ && capacity == asked_capacity_;
  if (same && now.steady - asked_at_ < timeouts::kServeQueue) return false;
  asked_waiting_ = std::move(waiting);
  asked_capacity_ = std::move(capacity);
  asked_at_ = now.steady;
  return true;
}

}  // namespace takt::job
