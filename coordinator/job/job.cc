// SPDX-License-Identifier: Apache-2.0
// This file has the record of a Job and what users ask of it. Pause, drain and leave are one thing:
// the run ends at a step boundary with a checkpoint, its workers are free, and the job is PAUSED or
// waits for others.
#include "coordinator/job/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/plan/copies.h"
#include "coordinator/job/spec_serde.h"

namespace takt::job {

using store::JobState;

namespace {

constexpr std::size_t kMaxNotices = 20;
// A plan that ends the coordinator would otherwise do so at each of its starts.
constexpr int kMostPlanningEnds = 3;

// Tells people what they can do with a job that has ended.
std::string HowToTrainOn(const store::JobRecord& record) {
  return absl::StrCat("to train on, run takt delete ", record.name, " and submit its file again",
                      record.state == JobState::kSucceeded ? ", with more steps" : "");
}

}  // namespace

void Job::Enqueue(config::JobSpec spec, Moment now) {
  spec_ = std::move(spec);
  tried_since_ = now.steady;
  SetState(JobState::kQueued, "submitted", now);
}

void Job::Restore(bool was_planned, Moment now) {
  if (store::HasEnded(record_.state)) return;
  absl::StatusOr<config::JobSpec> spec = ParseSpec(record_.spec);
  if (!spec.ok()) {
    record_.invalid_input = true;
    record_.violations = FieldErrorsOf(spec.status());
    SetState(JobState::kFailed,
             absl::StrCat("this program refuses the job: ", spec.status().message()), now);
    return;
  }
  spec_ = *std::move(spec);
  tried_since_ = now.steady;
  // If the wall clock was set back while no coordinator ran, no wait gets longer.
  for (store::JobFault& fault : record_.faults) fault.time = std::min(fault.time, now.wall);
  if (record_.copies) record_.copies->since = std::min(record_.copies->since, now.wall);
  const JobState state = record_.state;
  if (state == JobState::kRunning || state == JobState::kRecovering) return RestoreRun(now);
  if (state != JobState::kPlanning && state != JobState::kStarting) return;
  record_.ranks.clear();
  record_.lost.clear();
  const std::optional<store::JobStop> stop = std::exchange(record_.stop, std::nullopt);
  const std::optional<store::JobHalt> halt = std::exchange(record_.halt, std::nullopt);
  if (stop && stop->state != JobState::kQueued) {
    record_.invalid_input = stop->invalid_input;
    record_.violations = stop->violations;
    SetState(stop->state, stop->reason, now);
  } else if (halt) {
    SetState(halt->next, halt->reason, now);
  } else if (was_planned && ++record_.planning_ends >= kMostPlanningEnds) {
    SetState(JobState::kFailed,
             absl::StrCat("the coordinator ended ", record_.planning_ends,
                          " times in a row while it made the plan of this job; let it plan in "
                          "child processes (--planner child), or ask for a smaller plan, and "
                          "submit the job again"),
             now);
  } else {
    const absl::Duration pause = record_.planning_ends * timeouts::kPlanningPause;
    plans_again_ = {.wall = now.wall + pause, .steady = now.steady + pause};
    SetState(JobState::kQueued,
             absl::StrCat("the coordinator was restarted while the job was ", store::Name(state)),
             now);
  }
}

void Job::RestoreRun(Moment now) {
  BeginRun(record_.plan.mesh, RankPhase::kRunning, now);
  if (record_.stop) run_->stop_since = now.steady;
  for (RankRun& rank : run_->ranks) {
    past_workers_.insert(rank.bound.worker);
    // Its worker may hold a rank of another job by now.
    if (const auto lost = record_.lost.find(rank.bound.rank); lost != record_.lost.end()) {
      LoseRank(rank, lost->second);
      continue;
    }
    const membership::Loss away = context_.workers->Expect(rank.bound, key(), now);
    if (!record_.stop) rank.away = away.reason;
  }
  context_.outbox->effects.push_back(OpenRendezvous{key(), record_.plan.mesh.size()});
}

void Job::BeginRun(mesh::Mesh mesh, RankPhase phase, Moment now) {
  run_.emplace(JobRun::Of(record_, spec_, mesh, phase, now.steady));
  run_->tried_since = tried_since_;
}

void Job::TakeOver(config::JobSpec spec, Moment now) {
  spec_ = std::move(spec);
  tried_since_ = now.steady;
  BeginRun(record_.plan.mesh, RankPhase::kRunning, now);
  for (const RankRun& rank : run_->ranks) past_workers_.insert(rank.bound.worker);
  context_.outbox->effects.push_back(OpenRendezvous{key(), record_.plan.mesh.size()});
  AddNotice(absl::StrCat("the job was adopted in generation ", record_.generation.value(),
                         "; steps up to ", run_->steps.last_taken().value(),
                         " are not in this coordinator's log, unless it had them before"));
  SetState(JobState::kRunning, "adopted from its workers", now);
}

void Job::RaiseGeneration() {
  ++record_.generation;
  record_.generation = std::max(record_.generation, record_.next_generation);
}

absl::Status Job::Cancel(Moment now) {
  const JobState state = record_.state;
  if (state == JobState::kSucceeded || state == JobState::kFailed) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record_.name, " is ", store::Name(state),
                     " already: only a job that has not ended can be cancelled; takt delete ",
                     record_.name, " removes it"));
  }
  if (state == JobState::kCancelled || StopsForGood()) return absl::OkStatus();
  if (!run_) {
    context_.workers->ReleaseReserved(key());
    SetState(JobState::kCancelled, "cancelled by request", now);
    return absl::OkStatus();
  }
  StopRun({.state = JobState::kCancelled, .reason = "cancelled by request"}, now);
  Advance(now);
  return absl::OkStatus();
}

absl::Status Job::Pause(Moment now) {
  if (store::HasEnded(record_.state)) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record_.name, " is ", store::Name(record_.state),
                     ": only a job that has not ended can be paused; ", HowToTrainOn(record_)));
  }
  if (StopsForGood()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record_.name, " ends, so it cannot be paused: ", record_.stop->reason,
                     "; takt wait ", record_.name, " tells when it has"));
  }
  if (!spec_.checkpoint) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record_.name, " has no checkpoint ",
                     plan::AsksForCopies(spec_)
                         ? "directory, only copies in the memory of workers that a pause would free"
                         : "section",
                     ", so it could only start over; cancel it, or let it finish"));
  }
  if (record_.halt && record_.halt->next == JobState::kPaused) return absl::OkStatus();
  RequestHalt({.next = JobState::kPaused, .reason = "paused by request"}, now);
  return absl::OkStatus();
}

absl::Status Job::Resume(Moment now) {
  const bool pausing = record_.halt && record_.halt->next == JobState::kPaused;
  if (record_.state == JobState::kPaused) {
    SetState(JobState::kQueued, "resumed by request", now);
  } else if (pausing) {
    RequestHalt({.next = JobState::kQueued, .reason = "resumed by request"}, now);
  } else {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", record_.name, " is ", store::Name(record_.state),
        ", not PAUSED, so it cannot be resumed; ",
        store::HasEnded(record_.state) ? HowToTrainOn(record_) : "it goes on by itself"));
  }
  return absl::OkStatus();
}

void Job::Requeue(const std::string& reason, Moment now) {
  // A halt that was asked for before frees the workers too, unless it is for another plan.
  if (!run_ || !spec_.checkpoint || (record_.halt && !run_->next_plan)) return;
  RequestHalt({.next = JobState::kQueued, .reason = reason}, now);
}

void Job::RequestHalt(store::JobHalt halt, Moment now) {
  if (!run_) {  // QUEUED, PLANNING or PAUSED: nothing trains
    context_.workers->ReleaseReserved(key());
    if (record_.state != halt.next) SetState(halt.next, halt.reason, now);
    return;
  }
  const bool told = record_.stop || (record_.halt && (halt.in_memory || !record_.halt->in_memory));
  record_.halt = halt;
  run_->next_plan.reset();
  context_.workers->ReleaseReserved(key());
  changed_ = true;
  if (!told && record_.state == JobState::kStarting) {
    StopRun({.state = JobState::kQueued, .reason = halt.reason}, now);
  } else if (!told) {
    SendToRanks(HaltOf(halt));
  }
  Advance(now);
}

// True if the run ends for good, whatever is asked.
bool Job::StopsForGood() const {
  return run_ && record_.stop &&
         (record_.stop->state == JobState::kFailed || record_.stop->state == JobState::kCancelled);
}

void Job::SetState(JobState state, std::string reason, Moment now) {
  Log(LogLevel::kInfo, "job state",
      {{"job", record_.name},
       {"generation", absl::StrCat(record_.generation.value())},
       {"from", record_.transitions.empty() ? "" : store::Name(record_.state)},
       {"to", store::Name(state)},
       {"reason", reason}});
  record_.Enter(state, now.wall, std::move(reason));
  if (store::HasEnded(state)) EndRecord(now);
  changed_ = true;
}

// Workers free the copies of a job that has ended. One that does not hear this frees them later by
// itself.
void Job::EndRecord(Moment now) {
  record_.end_time = now.wall;
  std::set<std::string> keepers = CopyHolders();
  if (record_.plan.copy_every_steps > 0) keepers.insert(past_workers_.begin(), past_workers_.end());
  for (const std::string& worker : keepers)
    context_.workers->Send(worker, control::Acknowledge{key()});
  record_.copies.reset();
}

void Job::SetReason(std::string reason) {
  if (record_.reason == reason) return;
  Log(LogLevel::kInfo, "job reason",
      {{"job", record_.name}, {"state", store::Name(record_.state)}, {"reason", reason}});
  record_.reason = std::move(reason);
  // While many ranks load and connect, each round has another reason. It is shown, and stored with
  // what comes next.
  (record_.state == JobState::kStarting ? grown_ : changed_) = true;
}

void Job::AddNotice(std::string notice) {
  std::vector<std::string>& notices = record_.notices;
  if (std::ranges::find(notices, notice) != notices.end()) return;
  Log(LogLevel::kWarning, "job warning", {{"job", record_.name}, {"warning", notice}});
  if (notices.size() == kMaxNotices) notices.erase(notices.begin());
  notices.push_back(std::move(notice));
  changed_ = true;
}

void Job::Tick(bool batch, Moment now) {
  if (run_) {
    if (batch) CollectSteps(/*rest=*/false, now);
    AdvanceCheckpoints(now);
    Advance(now);
  }
  if (run_) ConsiderReplanning(now);
  if (run_) ConsiderEviction(now);
  if (!batch || waiting_logs_.empty()) return;
  std::vector<store::LogRecord>& logs = context_.outbox->changes.logs;
  logs.insert(logs.end(), waiting_logs_.begin(), waiting_logs_.end());
  waiting_logs_.clear();
  grown_ = true;
}

bool Job::HasWaitingBatch() const { return !waiting_logs_.empty() || (run_ && run_->acknowledge); }

void Job::Flush() {
  news_ |= changed_;  // more may follow from what was decided
  if (changed_) context_.outbox->changes.jobs.push_back(record_);
  if (changed_ || grown_)
    context_.outbox->published.push_back(std::make_shared<const store::JobRecord>(record_));
  changed_ = grown_ = false;
}

void Job::FlushDeleted() {
  // Its last record is written first, so that its generation is remembered.
  if (record_.next_generation > record_.generation) {
    record_.generation = record_.next_generation;
    changed_ = true;
  }
  if (changed_) context_.outbox->changes.jobs.push_back(record_);
  context_.outbox->changes.deleted_jobs.push_back(record_.id);
  context_.outbox->removed.push_back(record_.id);
  std::erase_if(context_.outbox->published,
                [&](const JobView& shown) { return shown->id == record_.id; });
  context_.outbox->effects.push_back(ForgetJob{record_.name});
}

}  // namespace takt::job
