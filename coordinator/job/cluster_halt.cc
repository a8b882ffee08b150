// SPDX-License-Identifier: Apache-2.0
// Cluster: pause, drain and leave, which are one thing: the run ends at a step boundary with a
// checkpoint, its workers are free, and the job is PAUSED or waits for others.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "coordinator/job/cluster.h"

namespace takt::job {

using membership::Worker;
using store::JobState;

namespace {

// Whether the run ends for good, whatever is asked.
bool Ends(const JobRun& run) {
  return run.stop &&
         (run.stop->state == JobState::kFailed || run.stop->state == JobState::kCancelled);
}

}  // namespace

absl::Status Cluster::PauseJob(JobEntry& job, Moment now) {
  const store::JobRecord& record = job.record;
  if (store::HasEnded(record.state) || (job.run && Ends(*job.run))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", record.name, store::HasEnded(record.state) ? " is " : " ends: ",
        store::HasEnded(record.state) ? store::Name(record.state) : job.run->stop->reason));
  }
  if (!job.spec.checkpoint) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record.name,
                     " has no checkpoint section, so it could only start over; cancel it, or let "
                     "it finish"));
  }
  if (record.halt && record.halt->next == JobState::kPaused) return absl::OkStatus();
  RequestHalt(job, {.next = JobState::kPaused, .reason = "paused by request"}, now);
  return absl::OkStatus();
}

absl::Status Cluster::ResumeJob(JobEntry& job, Moment now) {
  const bool pausing = job.record.halt && job.record.halt->next == JobState::kPaused;
  if (job.record.state == JobState::kPaused) {
    SetState(job, JobState::kQueued, "resumed by request", now);
  } else if (pausing) {
    RequestHalt(job, {.next = JobState::kQueued, .reason = "resumed by request"}, now);
  } else {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.record.name, " is ", store::Name(job.record.state), ", not PAUSED"));
  }
  return absl::OkStatus();
}

void Cluster::RequestHalt(JobEntry& job, store::JobHalt halt, Moment now) {
  if (!job.run) {  // QUEUED, PLANNING or PAUSED: nothing trains
    ReleaseReserved(job);
    if (job.record.state != halt.next) SetState(job, halt.next, halt.reason, now);
    return;
  }
  const bool told = job.record.halt.has_value() || job.run->stop.has_value();
  job.record.halt = job.run->halt = halt;
  Touch(job);
  if (!told && job.record.state == JobState::kStarting) {
    StopRun(job, {.state = JobState::kQueued, .reason = halt.reason}, now);
  } else if (!told) {
    for (const RankRun& rank : job.run->ranks) {
      if (rank.lost || IsTerminal(rank.phase)) continue;
      SendTo(rank.bound.worker,
             control::Halt{{job.record.name, job.record.generation}, halt.reason});
    }
  }
  Advance(job, now);
}

void Cluster::HaltJobOf(const Worker& worker, const std::string& reason, Moment now) {
  JobEntry* const job = worker.hold ? FindRunning(worker.hold->key) : nullptr;
  // A halt on its way frees the worker too.
  if (job == nullptr || !job->spec.checkpoint || job->record.halt) return;
  RequestHalt(*job, {.next = JobState::kQueued, .reason = reason}, now);
}

void Cluster::Leave(SessionId id, const std::string& reason, Moment now) {
  members_.Heard(id, now);
  members_.SetLeaving(id);
  const Worker* const worker = members_.FindSession(id);
  if (worker == nullptr) return;
  const std::string name = worker->hello.worker;
  Log(LogLevel::kInfo, "worker leaves",
      {{"worker", name}, {"reason", reason}, {"job", worker->hold ? worker->hold->key.job : ""}});
  if (!worker->hold) return;
  const control::JobKey key = worker->hold->key;
  const RankRun* const rank = FindRank(key, worker->hold->rank, *worker);
  if (rank == nullptr || IsTerminal(rank->phase)) return;
  const std::string why = absl::StrCat("worker ", name, " leaves: ", reason);
  JobEntry& job = *FindRunning(key);
  if (job.spec.checkpoint) {
    HaltJobOf(*worker, why, now);
  } else if (!job.run->stop) {
    StopRun(job, {.state = JobState::kFailed, .reason = why + "; the job has no checkpoint"}, now);
  }
}

}  // namespace takt::job
