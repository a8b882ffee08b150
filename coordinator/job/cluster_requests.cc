// SPDX-License-Identifier: Apache-2.0
// This file has what users and operators ask of a Cluster.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/job/cluster.h"

namespace takt::job {
namespace {

using store::JobRecord;

constexpr int kIdBytes = 8;

JobRecord JobAsBefore(const store::RequestRecord& request) {
  return request.job.value_or(JobRecord());
}

}  // namespace

template <class T>
void Cluster::ReplyLater(const Reply<T>& reply, absl::StatusOr<T> result) {
  outbox_.effects.push_back(Answer<T>{reply, std::move(result)});
}

template <class T>
bool Cluster::Replayed(const std::string& method, const std::string& request_id,
                       const std::string& job, const Reply<T>& reply,
                       const std::function<T(const store::RequestRecord&)>& as_before) {
  const absl::StatusOr<std::optional<store::RequestRecord>> found =
      requests_.Find(method, request_id, job);
  if (!found.ok()) {
    ReplyLater<T>(reply, found.status());
  } else if (found->has_value()) {
    ReplyLater<T>(reply, as_before(**found));
  }
  return !found.ok() || found->has_value();
}

std::optional<std::string> Cluster::OwnerOf(const std::string& job) const {
  const Job* const found = jobs_.Find(job);
  return found != nullptr ? std::optional(found->record().owner) : std::nullopt;
}

void Cluster::Submit(const Submission& submission, Reply<JobRecord> reply, Moment now) {
  if (!read_only_.ok()) return reply(read_only_);
  const auto& [request_id, spec, parsed, owner, predicted_step_seconds] = submission;
  if (Replayed<JobRecord>("SubmitJob", request_id, parsed.name, reply, JobAsBefore)) return;
  if (absl::Status status = CheckSubmit(parsed); !status.ok())
    return ReplyLater<JobRecord>(reply, status);
  Job& job = jobs_.Add({.id = absl::BytesToHexString(options_.random_bytes(kIdBytes)),
                        .name = parsed.name,
                        .spec = spec,
                        .owner = owner,
                        .create_time = now.wall,
                        .steps = parsed.steps,
                        .plan = {.predicted_step_seconds = predicted_step_seconds}});
  job.Enqueue(parsed, now);
  requests_.Add("SubmitJob", request_id, job.record());
  ReplyLater<JobRecord>(reply, job.record());
}

void Cluster::ChangeJob(const std::string& method, const std::string& request_id,
                        const std::string& name, const Reply<JobRecord>& reply, JobChange change,
                        Moment now) {
  if (!read_only_.ok()) return reply(read_only_);
  if (Replayed<JobRecord>(method, request_id, name, reply, JobAsBefore)) return;
  Job* const job = jobs_.Find(name);
  if (job == nullptr) return ReplyLater<JobRecord>(reply, NoJobNamed(name));
  if (absl::Status status = (job->*change)(now); !status.ok())
    return ReplyLater<JobRecord>(reply, status);
  requests_.Add(method, request_id, job->record());
  ReplyLater<JobRecord>(reply, job->record());
}

void Cluster::Cancel(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                     Moment now) {
  ChangeJob("CancelJob", request_id, name, reply, &Job::Cancel, now);
}

void Cluster::Pause(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                    Moment now) {
  ChangeJob("PauseJob", request_id, name, reply, &Job::Pause, now);
}

void Cluster::Resume(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                     Moment now) {
  ChangeJob("ResumeJob", request_id, name, reply, &Job::Resume, now);
}

void Cluster::Delete(const std::string& request_id, const std::string& name, Reply<bool> reply) {
  if (Replayed<bool>("DeleteJob", request_id, name, reply,
                     [](const store::RequestRecord&) { return true; }))
    return;
  Job* const job = jobs_.Find(name);
  if (job == nullptr) return ReplyLater<bool>(reply, NoJobNamed(name));
  const store::JobState state = job->record().state;
  if (!store::HasEnded(state)) {
    return ReplyLater<bool>(
        reply, absl::FailedPreconditionError(
                   absl::StrCat("job ", name, " is ", store::Name(state), "; cancel it first")));
  }
  requests_.Add("DeleteJob", request_id, job->record());
  job->FlushDeleted();
  jobs_.Remove(*job);
  ReplyLater<bool>(reply, true);
}

void Cluster::Adopt(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                    Moment now) {
  if (!read_only_.ok()) return reply(read_only_);
  if (Replayed<JobRecord>("AdoptJob", request_id, name, reply, JobAsBefore)) return;
  const absl::StatusOr<JobRecord> job = TakeOver(name, now);
  if (job.ok()) requests_.Add("AdoptJob", request_id, *job);
  ReplyLater<JobRecord>(reply, job);
}

void Cluster::Abandon(const std::string& request_id, const std::string& name, Reply<bool> reply,
                      Moment) {
  if (!read_only_.ok()) return reply(read_only_);
  if (Replayed<bool>("AbandonJob", request_id, name, reply,
                     [](const store::RequestRecord&) { return true; }))
    return;
  if (absl::Status status = LetGo(name); !status.ok()) return ReplyLater<bool>(reply, status);
  requests_.Add("AbandonJob", request_id, std::nullopt);
  ReplyLater<bool>(reply, true);
}

void Cluster::SetDrained(const std::string& request_id, const std::string& worker, bool drained,
                         Reply<membership::Worker> reply, Moment now) {
  if (!read_only_.ok()) return reply(read_only_);
  const std::string method = drained ? "DrainWorker" : "UndrainWorker";
  const auto as_before = [&](const store::RequestRecord&) {
    const membership::Worker* const found = workers_.members().Find(worker);
    membership::Worker answer =
        found != nullptr ? *found : membership::Worker{.hello = {.worker = worker}};
    answer.drained = drained;
    return answer;
  };
  if (Replayed<membership::Worker>(method, request_id, "", reply, as_before)) return;
  if (absl::Status status = workers_.members().SetDrained(worker, drained); !status.ok())
    return ReplyLater<membership::Worker>(reply, status);
  outbox_.changes.drained[worker] = drained;
  if (!drained) workers_.Trust(worker, now);
  const membership::Worker& changed = *workers_.members().Find(worker);
  Job* const job = drained && changed.hold ? jobs_.FindRunning(changed.hold->key) : nullptr;
  if (job != nullptr) job->Requeue(absl::StrCat("worker ", worker, " is drained"), now);
  requests_.Add(method, request_id, std::nullopt);
  ReplyLater<membership::Worker>(reply, changed);
}

}  // namespace takt::job
